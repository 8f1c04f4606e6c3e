"""What encodings refuse, and subclasses whose frequencies or basis do not fit."""

from __future__ import annotations

import math

import pytest
import torch

from performer_string import ENCODINGS, SeparableEncoding, build_encoding, grid_positions
from performer_string.position import Sizes
from performer_string.position.block_rotation import BlockRotation
from tests.helpers.encodings import random_positions, variants

CASES = [
    ("circulant-strin", {}, "unknown encoding 'circulant-strin'. Did you mean 'circulant-string'"),
    ("circulant-string", {"blocksize": 4}, "no option 'blocksize'. Did you mean 'block_size'"),
    ("rope", {"share_heads": True}, "no option 'share_heads'"),
    ("circulant-string", {"block_size": 5}, "block_size must divide the head width 12.*Possible: 3, 4, 6, 12"),
    ("circulant-string", {"block_size": 24}, "between 3 and it, not 24"),
    ("cayley-string", {"generator": "dens"}, "unknown generator 'dens'. Did you mean 'dense'"),
    ("cayley-string", {"k": 3}, "generator 'dense' has no option 'k'"),
    ("cayley-string", {"generator": "random", "both_triangles": True}, "generator 'random' has no option"),
    ("pate-so2", {"metric": "by-positon"}, "unknown metric of pate-so2 'by-positon'. Did you mean 'by-position'"),
    ("pate-so2", {"metric": "by-position"}, "needs conformal_scaling"),
    ("pate-so3", {"conformal_scaling": 0.5, "lambda_start": 0.5}, "between 0.6065 and 1.649, not 0.5"),
    ("pate-so3", {"conformal_scaling": 0.5, "lambda_form": "decay", "lambda_start": 1.5}, "between 0 and 1, not 1.5"),
    ("reflection-string", {"cayley": "dens"}, "unknown generator 'dens'. Did you mean 'dense'"),
    ("cayley-string", {"generator": "banded", "bandwidth": 0}, "between 1 and 11.*not 0"),
    ("cayley-string", {"generator": "banded", "bandwidth": 12}, "between 1 and 11.*not 12"),
    ("cayley-string", {"generator": "top-k", "k": 67}, "between 1 and 66.*not 67"),
    ("cayley-string", {"generator": "top-k", "k": 0}, "between 1 and 66.*not 0"),
    ("cayley-string", {"generator": "top-k-of-matrix", "k": 133}, "between 1 and 132.*not 133"),
    ("pate-so4", {"factors": "right", "layout": "raster"}, "factors of pate-so4"),
    ("pate-so3", {"layout": "rasters"}, "unknown layout of pate 'rasters'. Did you mean 'raster'"),
    ("pate-so2", {"scaling": "rows", "conformal_scaling": 1.0}, "scaling of pate"),
    ("cayley-string", {"generator": "random", "fraction": 0.0}, r"in \(0, 1\], not 0.0"),
    ("cayley-string", {"generator": "random", "fraction": 1.5}, r"in \(0, 1\], not 1.5"),
    ("cayley-string", {"frequencies": "mixd"}, "unknown frequencies of cayley-string 'mixd'. Did you mean 'mixed'"),
    ("absolute", {"grid": 14}, r"grid must hold one or more positive sizes, like \(14, 14\), not 14"),
    ("absolute", {"init_std": -1.0}, "init_std"),
    ("absolute", {"interpolation": "cubic"}, "interpolation of absolute 'cubic'. Did you mean 'bicubic'"),
    ("absolute", {"grid": None}, "needs the training grid"),
    ("sinusoidal", {"head_dim": 1, "num_heads": 2}, "2 axes need a width of at least 4, not 2"),
    ("liere", {"block_size": 5}, "block_size must divide the head width 12.*Possible: 2, 3, 4, 6, 12"),
    ("liere", {"block_size": 1}, "between 2 and it, not 1"),
    ("pate-so3", {"head_dim": 16}, "blocks of 3, so the head width must be divisible by 3, not 16"),
    ("pate-so4", {"head_dim": 14}, "blocks of 4, so the head width must be divisible by 4, not 14"),
    ("pate-so4", {"coord_dim": 3, "grid": None}, "positions have 1 or 2 dimensions, not 3"),
    ("pate-so2", {"layout": "rows"}, "unknown layout of pate 'rows'. Known: raster, axes"),
    ("pate-so2", {"layout": "raster", "grid": None}, "a raster index needs the training grid"),
    ("pate-so3", {"conformal_scaling": 0.5, "grid": None}, "a raster index needs the training grid"),
    ("pate-so2", {"conformal_scaling": -1.0}, "conformal_scaling must be finite and 0 or more"),
    ("pate-so2", {"conformal_scaling": math.inf}, "conformal_scaling must be finite and 0 or more, not inf"),
    ("pate-so3", {"conformal_scaling": 1.0, "slow_down": math.inf}, "slow_down must be finite, not inf"),
    ("pate-so4", {"conformal_scaling": 1.0, "slow_down": 0.0}, "slow_down must be positive, not 0.0"),
    ("rope-mixed", {"start": "uniform", "init_scale": math.nan}, "init_scale .* must be finite and 0 or more"),
    ("liere", {"init_scale": -1.0}, "init_scale of liere must be finite and 0 or more, not -1.0"),
    ("liere", {"init_scale": math.inf}, "init_scale of liere must be finite and 0 or more"),
    ("cayley-string", {"init_std": math.nan}, "init_std must be finite and 0 or more, not nan"),
    ("cayley-string", {"generator": "top-k-of-matrix", "init_std": -0.1}, "init_std must be finite and 0 or more"),
    ("rope", {"base": math.inf}, "base of the frequencies must be finite, not inf"),
    ("rope", {"base": -1.0}, "base of the frequencies must be positive, not -1.0"),
    ("rope", {"coord_dim": 3, "head_dim": 4, "grid": None}, "3 axes need at least as many planes"),
    ("rope", {"grid": (4, 4, 4)}, r"\(4, 4, 4\) does not have coord_dim=2 axes"),
    ("rope", {"head_dim": 13}, "head width must be even, not 13"),
    ("rope-mixed", {"head_dim": 13}, "head width must be even, not 13"),
    ("visionllama", {"head_dim": 13}, "head width must be even, not 13"),
    ("cayley-string", {"head_dim": 13}, "head width must be even, not 13"),
    ("reflection-string", {"head_dim": 13}, "head width must be even, not 13"),
]

# Options that another one leaves without effect, and how a user gets one.
UNUSED = [
    ("visionllama", {"frequencies": "liere", "base": 3.0}, {"frequencies": "chu"}),
    ("rope-mixed", {"start": "uniform", "base": 77.0}, {"start": "mixed"}),
    ("rope-mixed", {"init_scale": 7.0}, {"start": "uniform"}),
    ("circulant-string", {"start": "normal", "base": 77.0}, {"start": "rope-mixed"}),
    ("circulant-string", {"start": "zero", "base": -1.0}, {"start": "rope-mixed", "base": 9.0}),
    ("pate-so2", {"slow_down": 8.0}, {"conformal_scaling": 0.5}),
    ("pate-so3", {"scaling": "axes"}, {"conformal_scaling": 0.5}),
    ("pate-so4", {"share_lambda": True, "conformal_scaling": 0.0}, {"conformal_scaling": 0.5}),
    ("pate-so4", {"factors": "both"}, {"layout": "raster"}),
    ("pate-so3", {"lambda_start": 0.9}, {"conformal_scaling": 0.5}),
    ("reflection-string", {"k": 3}, {"cayley": "top-k"}),
    ("reflection-string", {"both_triangles": True}, {"cayley": True}),
    ("pate-so4", {"factors": "both"}, {"grid": (4,), "coord_dim": 1}),
]


@pytest.mark.parametrize(("name", "options", "message"), CASES, ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_encoding(name, **{"head_dim": 12, "num_heads": 2, "grid": (4, 4), **options})


@pytest.mark.parametrize(("name", "options", "remedy"), UNUSED, ids=str)
def test_options_without_an_effect(name, options, remedy):
    """They passed, so that a user compared two models that were the same."""
    sizes = {"head_dim": 12, "num_heads": 2, "grid": (4, 4)}
    with pytest.raises(ValueError, match=rf"encoding '{name}': \w+=.* has no effect with \w+=.*\. Leave it out, or"):
        build_encoding(name, **sizes, **options)
    build_encoding(name, **{**sizes, **options, **remedy})


@pytest.mark.parametrize("name", ENCODINGS)
def test_sizes_have_to_be_positive(name):
    for size in ("head_dim", "num_heads", "coord_dim", "layers"):
        with pytest.raises(ValueError, match=f"{size} must be positive, not 0"):
            build_encoding(name, **{"head_dim": 12, "num_heads": 2, "grid": (4, 4), size: 0})


@pytest.mark.parametrize("name", ENCODINGS)
def test_positions_of_another_dimension_name_both(name):
    for variant in variants(name):
        with pytest.raises(ValueError, match=rf"coord_dim={variant.coord_dim}.*\[7, {variant.coord_dim + 1}\]"):
            variant.make()(random_positions(7, variant.coord_dim + 1))


def test_rounded_positions_are_refused():
    """In bf16, 1,024 positions are 513 numbers, and their angles are off by radians."""
    for dtype in (torch.bfloat16, torch.float16):
        for name in ("rope", "liere", "sinusoidal"):
            encoding = build_encoding(name, head_dim=12, num_heads=2, coord_dim=1)
            message = "rounded, to whole patches or worse: keep them in float32, in no parameter.*cast_forward_inputs"
            with pytest.raises(ValueError, match=message):
                encoding.by_layer(grid_positions((1024,)).to(dtype))
        with pytest.raises(ValueError, match="rounds positions"):
            grid_positions((1024,), dtype=dtype)


@pytest.mark.parametrize("name", ["cayley-string", "circulant-string", "liere", "pate-so4", "absolute"])
def test_parameters_that_are_not_finite_are_an_error_in_evaluation(name):
    """In training they reach the loss, where the trainer looks."""
    encoding, positions = build_encoding(name, head_dim=12, num_heads=2, grid=(4, 4)), grid_positions((4, 4))
    with torch.no_grad():
        next(encoding.parameters()).flatten()[1] = float("nan")
    out = encoding.embedding(positions) if encoding.additive else encoding(positions).matrix()
    assert out.isnan().any()
    encoding.eval()
    with pytest.raises(ValueError, match=r"must be finite numbers, but \w+.*\[.*\] is nan"):
        encoding(positions)


def test_rotations_of_other_heads_or_tokens_say_what_to_do():
    x, positions = torch.randn(2, 4, 5, 12), torch.rand(5, 2)
    several = build_encoding("rope-mixed", head_dim=12, num_heads=4, layers=3)
    with pytest.raises(ValueError, match=r"num_heads=4, and take by_layer\(positions\)"):
        several(positions).rotate(x)
    with pytest.raises(ValueError, match=r"rotation_q.rotate\(q\)"):
        several.by_layer(torch.rand(6, 2))[0].rotate(x)
    with pytest.raises(ValueError, match=r"must be \[B, H, N, d\], not \[5, 12\]"):
        several.by_layer(positions)[0].rotate(torch.randn(5, 12))
    with pytest.raises(ValueError, match="heads of width 12, and not of 10"):
        several.by_layer(positions)[0].rotate(x[..., :10])
    for name in ("rope", "rope-mixed", "liere"):
        of_three = build_encoding(name, head_dim=12, num_heads=4)(torch.rand(3, 1, 5, 2))
        with pytest.raises(ValueError, match="the rotation is of"):
            of_three.rotate(x)


SHARING = ["rope-mixed", "circulant-string", "cayley-string", "reflection-string", "pate-so2", "pate-so3", "liere"]


@pytest.mark.parametrize("name", SHARING)
def test_as_many_layers_as_heads_are_not_taken_for_heads(name):
    """Where heads share parameters, the rotation of all layers has one entry for each, as that of one layer's heads."""
    options = {"conformal_scaling": 0.5} if name.startswith("pate") else {}
    sizes = {"head_dim": 12, "grid": (4, 4), "share_heads": True, **options}
    encoding = build_encoding(name, num_heads=3, layers=3, **sizes)
    torch.nn.init.normal_(next(encoding.parameters()))
    other = build_encoding(name, num_heads=2, layers=3, **sizes)  # as many parameters, and no such mistake
    other.load_state_dict(encoding.state_dict())
    x, positions = torch.randn(2, 3, 5, 12), torch.rand(5, 2) * 4
    with pytest.raises(ValueError, match="the rotation is of"):
        encoding(positions).rotate(x)
    for layer, expected in zip(encoding.by_layer(positions), other.by_layer(positions), strict=True):
        torch.testing.assert_close(layer.rotate(x)[:, :2], expected.rotate(x[:, :2]))
        torch.testing.assert_close(layer.rotate(x)[:, 2:], expected.rotate(x[:, 1:])[:, 1:])


class Shaped(SeparableEncoding):
    """A user's encoding whose frequencies and basis have the shapes that a test sets."""

    frequencies_shape = (1, 2, 6)
    basis_shape: tuple[int, ...] | None = None
    dtype = torch.float32

    def frequencies(self):
        return torch.ones(self.frequencies_shape)

    def basis(self):
        return None if self.basis_shape is None else torch.eye(12, dtype=self.dtype).expand(self.basis_shape)


def test_frequencies_of_other_shapes():
    encoding = Shaped(Sizes(12, 2, 2, layers=3))
    for encoding.frequencies_shape in ((1, 2, 6), (6, 2, 6), (6, 2, 4)):
        assert len(encoding.by_layer(torch.rand(5, 2))) == 3
    for encoding.frequencies_shape in ((2, 2, 6), (3, 2, 6), (6, 3, 6), (6, 2, 7), (2, 6)):
        with pytest.raises(ValueError, match=r"\[1 or 6, 2, at most 6\] for 3 layers of 2 heads of width 12"):
            encoding(torch.rand(5, 2))
    with pytest.raises(NotImplementedError, match=r"Shaped rotates queries and keys, but has no generators\(\)"):
        encoding.generators()


def test_bases_of_other_shapes():
    encoding = Shaped(Sizes(12, 2, 2, layers=3))
    for encoding.basis_shape in ((1, 12, 12), (6, 12, 12)):
        assert len(encoding.by_layer(torch.rand(5, 2))) == 3
    for encoding.basis_shape in ((12, 12), (2, 12, 12), (3, 12, 12)):
        with pytest.raises(ValueError, match=r"basis\(\) must be \[1 or 6, 12, 12\] for 3 layers of 2 heads"):
            encoding(torch.rand(5, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bases_in_16_bits(dtype):
    """A rotation of a rounded basis was off by a percent in silence."""
    encoding = Shaped(Sizes(12, 2, 2))
    encoding.basis_shape, encoding.dtype = (1, 12, 12), dtype
    with pytest.raises(ValueError, match=r"Shaped.basis\(\) is in torch.b?float16, in which it is not orthogonal"):
        encoding(torch.rand(5, 2))


def test_a_family_without_frequencies_names_the_guide():
    encoding = SeparableEncoding(Sizes(head_dim=4, num_heads=2))
    with pytest.raises(NotImplementedError, match=r"SeparableEncoding has no frequencies, .*own-encoding\.md"):
        encoding(torch.zeros(3, 2))


def test_a_width_of_queries_that_an_encoding_does_not_take():
    with pytest.raises(ValueError, match="qk_dim=8 has no effect on 'rope'"):
        build_encoding("rope", head_dim=16, num_heads=1, qk_dim=8)
    assert build_encoding("rope", head_dim=16, num_heads=1, qk_dim=16)(grid_positions((2, 2))).head_dim == 16


@pytest.mark.parametrize("positions", [[[0.0, 0.0]], torch.zeros(3, 2).numpy()], ids=["list", "array"])
def test_positions_have_to_be_a_tensor(positions):
    with pytest.raises(TypeError, match="positions must be a tensor"):
        build_encoding("rope", head_dim=8, num_heads=2)(positions)


@pytest.mark.parametrize("name", ["head_dim", "num_heads", "coord_dim", "layers"])
def test_sizes_have_to_be_integers(name):
    with pytest.raises(ValueError, match=f"{name} must be int, not 4.0"):
        build_encoding("rope", **{"head_dim": 8, "num_heads": 2, name: 4.0})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_in_16_bits_are_refused(dtype):
    """An exponential under autocast was NaN in silence."""
    with pytest.raises(ValueError, match=r"within without_autocast\(positions\)"):
        BlockRotation(torch.eye(3, dtype=dtype).expand(2, 5, 4, 3, 3))
