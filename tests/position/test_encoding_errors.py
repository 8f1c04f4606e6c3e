"""What building an encoding refuses, and one of one's own whose frequencies do not fit."""

from __future__ import annotations

import pytest
import torch

from performer_string import ENCODINGS, build_encoding, grid_positions
from performer_string.position.base import SeparableEncoding, Sizes


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("circulant-strin", {}, "unknown encoding 'circulant-strin'. Did you mean 'circulant-string'"),
        ("circulant-string", {"blocksize": 4}, "no option 'blocksize'. Did you mean 'block_size'"),
        ("rope", {"share_heads": True}, "no option 'share_heads'"),
        ("circulant-string", {"block_size": 5}, "block_size has to divide the head width 12.*Possible: 3, 4, 6, 12"),
        ("circulant-string", {"block_size": 24}, "between 3 and it, not 24"),
        ("cayley-string", {"generator": "dens"}, "unknown generator 'dens'. Did you mean 'dense'"),
        ("cayley-string", {"k": 3}, "generator 'dense' has no option 'k'"),
        ("cayley-string", {"generator": "banded", "bandwidth": 0}, "between 1 and 11.*not 0"),
        ("cayley-string", {"generator": "banded", "bandwidth": 12}, "between 1 and 11.*not 12"),
        ("cayley-string", {"generator": "top-k", "k": 67}, "between 1 and 66.*not 67"),
        ("cayley-string", {"generator": "top-k", "k": 0}, "between 1 and 66.*not 0"),
        ("cayley-string", {"generator": "random", "fraction": 0.0}, r"in \(0, 1\], not 0.0"),
        ("cayley-string", {"generator": "random", "fraction": 1.5}, r"in \(0, 1\], not 1.5"),
        ("absolute", {"grid": 14}, r"one size for each axis, like \(14, 14\), not 14"),
        ("liere", {"block_size": 5}, "block_size has to divide the head width 12.*Possible: 2, 3, 4, 6, 12"),
        ("liere", {"block_size": 1}, "between 2 and it, not 1"),
        ("pate-so3", {"head_dim": 16}, "blocks of 3, so the head width has to be divisible, not 16"),
        ("pate-so4", {"head_dim": 14}, "blocks of 4, so the head width has to be divisible, not 14"),
        ("pate-so4", {"coord_dim": 3, "grid": None}, "positions have 1 or 2 dimensions, not 3"),
        ("pate-so2", {"layout": "rows"}, "raster, axes, not 'rows'"),
        ("pate-so2", {"grid": None}, "a raster index needs the training grid"),
        ("pate-so2", {"conformal_scaling": -1.0}, "conformal_scaling has to be 0 or more"),
        ("cayley-string", {"frequencies": "random"}, "frequencies has to be one of"),
        ("rope", {"base": -1.0}, "base of the frequencies has to be positive, not -1.0"),
        ("absolute", {"grid": None}, "needs the training grid"),
        ("rope", {"grid": (4, 4, 4)}, r"\(4, 4, 4\) does not have coord_dim=2 axes"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_encoding(name, **{"head_dim": 12, "num_heads": 2, "grid": (4, 4), **options})


@pytest.mark.parametrize("name", ["rope", "rope-mixed", "visionllama", "cayley-string"])
def test_odd_width_is_an_error(name):
    with pytest.raises(ValueError, match="head width has to be even, not 13"):
        build_encoding(name, head_dim=13, num_heads=2)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("option", ["head_dim", "num_heads", "coord_dim"])
def test_zero_is_an_error(name, option):
    with pytest.raises(ValueError, match=f"{option} has to be positive, not 0"):
        build_encoding(name, **{"head_dim": 12, "num_heads": 2, "grid": (4, 4), option: 0})


def test_frequencies_of_other_shapes():
    """Of an encoding of one's own: those of all layers' heads, or one for all."""

    class Mine(SeparableEncoding):
        def frequencies(self):
            return torch.ones(self.shape)

    mine = Mine(Sizes(12, 2, 2, layers=3))
    for mine.shape in ((1, 2, 6), (6, 2, 6), (6, 2, 4)):
        assert len(mine.by_layer(torch.rand(5, 2))) == 3
    for mine.shape in ((2, 2, 6), (3, 2, 6), (6, 3, 6), (6, 2, 7), (2, 6)):
        with pytest.raises(ValueError, match=r"\[1 or 6, 2, at most 6\] for 3 layers of 2 heads of width 12"):
            mine(torch.rand(5, 2))
    with pytest.raises(NotImplementedError, match=r"Mine turns queries and keys, but has no generators\(\)"):
        mine.generators()


def test_bases_of_other_shapes():
    class Mine(SeparableEncoding):
        def frequencies(self):
            return torch.ones(1, 2, 6)

        def basis(self):
            return torch.eye(12).expand(self.shape)

    mine = Mine(Sizes(12, 2, 2, layers=3))
    for mine.shape in ((1, 12, 12), (6, 12, 12)):
        assert len(mine.by_layer(torch.rand(5, 2))) == 3
    for mine.shape in ((12, 12), (2, 12, 12), (3, 12, 12)):
        with pytest.raises(ValueError, match=r"basis\(\) has to be \[1 or 6, 12, 12\] for 3 layers of 2 heads"):
            mine(torch.rand(5, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_positions(dtype):
    """1,024 places in bf16 are 513, and their angles off by radians."""
    for name in ("rope", "liere", "sinusoidal"):
        encoding = build_encoding(name, head_dim=12, num_heads=2, coord_dim=1)
        with pytest.raises(ValueError, match="are rounded, to whole patches or worse: keep them in float32"):
            encoding.by_layer(grid_positions((1024,)).to(dtype))
    with pytest.raises(ValueError, match="rounds positions"):
        grid_positions((1024,), dtype=dtype)


def test_a_rotation_of_other_heads_or_tokens_says_what_to_do():
    x, positions = torch.randn(2, 4, 5, 12), torch.rand(5, 2)
    several = build_encoding("rope-mixed", head_dim=12, num_heads=4, layers=3)
    with pytest.raises(ValueError, match=r"num_heads=4, and take by_layer\(positions\)"):
        several(positions).rotate(x)
    with pytest.raises(ValueError, match=r"rotation_q.rotate\(q\)"):
        several.by_layer(torch.rand(6, 2))[0].rotate(x)
    for name in ("rope", "rope-mixed"):
        of_three = build_encoding(name, head_dim=12, num_heads=4)(torch.rand(3, 1, 5, 2))
        with pytest.raises(ValueError, match="the rotation is of"):
            of_three.rotate(x)


@pytest.mark.parametrize(("head_dim", "generator"), [(2, "banded"), (2, "top-k"), (6, "top-k"), (2, "random")])
def test_what_is_not_given_fits_small_heads(head_dim, generator):
    encoding = build_encoding("cayley-string", head_dim=head_dim, num_heads=1, generator=generator)
    assert encoding(grid_positions((2, 2))).matrix().isfinite().all()
