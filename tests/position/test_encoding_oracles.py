"""Each family against the form that its source gives, which shares no code with it."""

from __future__ import annotations

import math

import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.testing import assert_close

from performer_string import ENCODINGS, build_encoding, grid_positions
from performer_string.ops import reference_positions
from performer_string.position.cayley import GENERATORS
from performer_string.position.circulant import fourier_basis
from performer_string.position.frequencies import mixed_frequencies
from tests.helpers.encodings import exponentials, make_encoding, naming, random_positions, scores, variants


@pytest.mark.parametrize("name", ENCODINGS)
def test_matrix_is_scipys_exponential(name):
    for variant in variants(name):
        encoding, positions = variant.make(), variant.positions(3)
        matrix, generators = encoding(positions).matrix().expand(2, -1, -1, -1), encoding.generators().double()
        for head in range(2):
            for n, r in enumerate(positions.tolist()):
                exponent = sum(x * generators[head, c].detach().numpy() for c, x in enumerate(r))
                expected = torch.from_numpy(scipy.linalg.expm(exponent))
                with naming((variant, head, n)):
                    assert_close(matrix[head, n].detach(), expected, rtol=0, atol=1e-9)


def test_reflection_is_two_householder_matrices(qk):
    encoding, positions = make_encoding("reflection-string"), random_positions(7, 2)
    torch.nn.init.normal_(encoding.mirrors)
    expected = reference_positions.reflection_rotate(qk[0], encoding.mirrors, positions)
    assert_close(encoding(positions).rotate(qk[0]), expected)


def test_so3_basis_where_its_axes_are_those_of_the_coordinates():
    for along in range(3):
        encoding, positions = make_encoding("pate-so3"), random_positions(7, 2)
        encoding.axis.data[:] = torch.eye(3)[along]
        with naming(along):
            assert_close(encoding(positions).matrix(), exponentials(encoding, positions), rtol=0, atol=1e-9)


def test_so4_basis_where_its_axes_coincide():
    """At u = v and u = -v a fixed choice of basis would divide by zero."""
    for factor in (1.0, -1.0):
        encoding, positions = make_encoding("pate-so4"), random_positions(7, 2)
        encoding.axes.data[1] = factor * encoding.axes.data[0]
        with naming(factor):
            assert_close(encoding(positions).matrix(), exponentials(encoding, positions), rtol=0, atol=1e-9)


def skew_pairs(reach: int) -> Tensor:
    """Return which pairs (i < j) of 12 dimensions have j - i at most the reach."""
    rows, columns = torch.triu_indices(12, 12, offset=1)
    return columns - rows <= reach


class TestCayley:
    def make(self, head_dim: int = 12, **options):
        return make_encoding("cayley-string", head_dim=head_dim, **{"init_std": 1.0, **options})

    def test_block_diagonal_is_rope(self):
        """The blocks commute with the rotations of their planes."""
        encoding, positions = self.make(generator="block-diagonal"), random_positions(7, 2)
        mixed = make_encoding("rope-mixed")
        mixed.omega.data = encoding.omega.data
        assert_close(encoding(positions).matrix(), mixed(positions).matrix())

    def test_blocks_turn_their_planes_by_twice_the_angle_of_the_entry(self):
        generator = self.make(generator="block-diagonal").generator
        angles, basis = 2 * generator.entries.atan(), generator.basis()
        first, second = basis[:, :6, :6], basis[:, 6:, :6]  # of e_p, in dimensions p and p + P
        assert_close(first, torch.diag_embed(angles.cos()))
        assert_close(second, torch.diag_embed(angles.sin()))

    def test_block_diagonal_leaves_the_last_dimension_of_an_odd_width(self):
        matrix = self.make(7, generator="block-diagonal")(random_positions(5, 2)).matrix()
        assert_close(matrix @ matrix.mT, torch.eye(7, dtype=torch.float64).expand_as(matrix))
        assert torch.equal(matrix[..., 6, 6], torch.ones_like(matrix[..., 6, 6]))

    @pytest.mark.parametrize("generator", GENERATORS)
    def test_basis_is_the_transform_of_a_skew_matrix(self, generator):
        skew = self.make(generator=generator).generator
        s, eye = skew.skew(), torch.eye(12, dtype=torch.float64)
        assert_close(s, -s.mT)
        assert_close(skew.basis(), (eye - s) @ torch.linalg.inv(eye + s))

    @pytest.mark.parametrize(
        ("options", "entries", "parameters"),
        [
            ({"generator": "dense"}, 66, 66),
            ({"generator": "block-diagonal"}, 6, 6),
            ({"generator": "banded", "bandwidth": 1}, 11, 11),
            ({"generator": "banded", "bandwidth": 3}, 11 + 10 + 9, 30),
            ({"generator": "top-k", "k": 9}, 9, 66),
            ({"generator": "random", "fraction": 0.3}, 20, 20),
        ],
        ids=str,
    )
    def test_sparse_generators_have_their_support(self, options, entries, parameters):
        skew = self.make(**options).generator
        upper = skew.skew()[:, skew.order][:, :, skew.order].triu(1) != 0  # numbered as in the papers
        assert (upper.sum((1, 2)) == entries).all()
        assert skew.entries[0].numel() == parameters
        rows, columns = upper[0].nonzero().unbind(1)
        if "bandwidth" in options:
            assert (columns - rows).max() == options["bandwidth"]
        if options["generator"] == "block-diagonal":
            assert (rows % 2 == 0).all()
            assert (columns == rows + 1).all()

    def test_top_k_learns_the_largest_entries_only(self):
        skew = self.make(generator="top-k", k=9).generator
        skew.skew().square().sum().backward()
        learned = skew.entries.grad != 0
        assert (learned.sum(-1) == 9).all()
        for head in range(2):
            size = skew.entries[head].abs()
            assert size[learned[head]].min() > size[~learned[head]].max()

    def test_top_k_of_a_matrix_counts_single_entries_as_the_source_does(self):
        """Section 3.5 of the report: A, its k largest entries off the diagonal, a symmetric mask, and S = A - A^T."""
        skew = self.make(generator="top-k-of-matrix", k=24).generator
        above, below = skew.entries.detach().chunk(2, dim=-1)  # [H, 66]
        rows, columns = torch.triu_indices(12, 12, offset=1)
        for head in range(2):
            a = torch.zeros(12, 12, dtype=torch.float64)
            a[rows, columns], a[columns, rows] = above[head], below[head]
            mask = a.abs() >= a.abs().flatten().sort(descending=True).values[23]
            assert mask.sum() == 24
            masked = a * (mask | mask.T)
            s = skew.skew()[head][skew.order][:, skew.order]  # numbered as in the papers
            assert_close(s, masked - masked.T)
            assert 12 <= (s.triu(1) != 0).sum() <= 24

    @pytest.mark.parametrize(("generator", "reach"), [("dense", 11), ("banded", 2)])
    def test_both_triangles_are_an_unconstrained_matrix(self, generator, reach):
        """S = A - A^T, whose gradient reaches A_ij and A_ji alike: S moves twice as far with each step of Adam."""
        skew = self.make(generator=generator, both_triangles=True).generator
        rows, columns = torch.triu_indices(12, 12, offset=1)[:, skew_pairs(reach)]
        a = torch.zeros(2, 12, 12, dtype=torch.float64)
        a[:, rows, columns], a[:, columns, rows] = skew.entries.detach().chunk(2, dim=-1)
        assert_close(skew.skew()[:, skew.order][:, :, skew.order], a - a.mT)
        weights = torch.randn(2, 12, 12, dtype=torch.float64)
        (skew.skew() * weights).sum().backward()
        above, below = skew.entries.grad.chunk(2, dim=-1)
        assert_close(above, (weights - weights.mT)[:, skew.order][:, :, skew.order][:, rows, columns])
        assert_close(below, -above)

    @pytest.mark.parametrize("generator", GENERATORS)
    def test_reflections_take_every_generator(self, generator):
        encoding, positions = make_encoding("reflection-string", cayley=generator), random_positions(5, 2)
        torch.nn.init.normal_(encoding.generator.entries)
        cayley = self.make(generator=generator)
        cayley.omega.data = encoding.frequencies().detach()
        cayley.generator.load_state_dict(encoding.generator.state_dict())
        assert_close(encoding(positions).matrix(), cayley(positions).matrix())

    @pytest.mark.parametrize("generator", [name for name in GENERATORS if name != "random"])
    def test_a_support_that_follows_from_the_sizes_is_not_saved(self, generator):
        encoding, positions = self.make(generator=generator), random_positions(5, 2)
        state = encoding.state_dict()
        assert set(state) == {"omega", "generator.entries"}
        state["generator.support"] = encoding.generator.rows_and_columns().expand(
            2, -1, -1
        )  # as the first versions saved it
        with torch.device("meta"):
            empty = build_encoding("cayley-string", head_dim=12, num_heads=2, generator=generator)
        for loaded in (self.make(generator=generator), empty.to_empty(device="cpu").double()):
            loaded.load_state_dict(state)
            assert torch.equal(loaded(positions).matrix(), encoding(positions).matrix())

    def test_random_support_is_saved(self):
        first, second = self.make(generator="random"), self.make(generator="random")
        assert not torch.equal(first.generator.support, second.generator.support)
        second.load_state_dict(first.state_dict())
        positions = random_positions(5, 2)
        assert torch.equal(first(positions).matrix(), second(positions).matrix())

    def test_defaults_fit_small_heads(self):
        for head_dim, generator in ((2, "banded"), (2, "top-k"), (6, "top-k"), (2, "random")):
            encoding = build_encoding("cayley-string", head_dim=head_dim, num_heads=1, generator=generator)
            assert encoding(grid_positions((2, 2))).matrix().isfinite().all(), (head_dim, generator)


def test_liere_is_orthogonal_under_bf16_autocast():
    encoding = build_encoding("liere", head_dim=64, num_heads=2, init_scale=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        matrix = encoding(torch.randn(50, 2) * 10).matrix()
    assert matrix.dtype == torch.float32
    assert (matrix @ matrix.mT - torch.eye(64)).abs().max() < 1e-5


def test_liere_with_blocks_of_two_is_rope_mixed(qk):
    """arXiv:2406.10322: planes commute."""
    liere, mixed, positions = make_encoding("liere", block_size=2), make_encoding("rope-mixed"), random_positions(7, 2)
    first = torch.arange(0, 12, 2)
    mixed.omega.data.copy_(liere.generators().detach()[:, :, first + 1, first])
    halves = [x.unflatten(-1, (6, 2)).transpose(-1, -2).flatten(-2) for x in qk]  # planes (p, p + P)
    assert_close(scores(liere, *qk, positions), scores(mixed, *halves, positions))


class TestFrequencies:
    def test_axial_bases_are_those_of_the_papers(self):
        """arXiv:2403.13298 section 3.2 and arXiv:2403.00522: half of the planes for each axis, base^(-t / planes)."""
        for name, base in (("rope", 100.0), ("visionllama", 10000.0)):
            encoding, expected = build_encoding(name, head_dim=16, num_heads=1), [base ** (-t / 4) for t in range(4)]
            rotation = encoding(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
            for angles in rotation.sin.asin().flatten(0, 1):
                along_axis = sorted((float(x) for x in angles if x.abs() > 1e-12), reverse=True)
                assert along_axis == pytest.approx(expected, rel=1e-6), name

    def test_axial_planes_are_divided_among_the_axes(self):
        omega = build_encoding("rope", head_dim=14, num_heads=1, coord_dim=3).frequencies()[0]
        assert ((omega > 0).sum(0) == 1).all()
        assert (omega > 0).sum(1).tolist() == [3, 2, 2]
        assert_close(omega[0, :3], 100.0 ** (-torch.arange(3) / 3))

    def test_mixed_start_from_the_magnitudes_of_rope(self):
        for name, options, planes in (
            ("rope-mixed", {"head_dim": 16}, 8),
            ("circulant-string", {"head_dim": 24, "block_size": 3}, 8),
            ("circulant-string", {"head_dim": 24, "block_size": 4}, 6),
            ("circulant-string", {"head_dim": 24, "block_size": 8}, 9),
        ):
            half = math.ceil(planes / 2)
            expected = (10.0 ** (-torch.arange(half) / half)).repeat(2)[:planes].expand(3, -1)
            with naming((name, options)):
                omega = build_encoding(name, num_heads=3, **options).frequencies()
                assert_close(omega.norm(dim=1), expected)

    def test_mixed_directions_are_uniform(self):
        """In one dimension as many heads rotate one way as the other."""
        for coord_dim in (1, 2, 3):
            omega = mixed_frequencies(4000, coord_dim, coord_dim, 10.0)
            assert omega.mean(0).abs().max() < 4.5 * (1 / coord_dim / 4000) ** 0.5, coord_dim

    def test_fourier_basis_is_orthogonal(self):
        for block_size in (3, 4, 5, 6, 12):
            basis = fourier_basis(block_size, 2)
            with naming(block_size):
                assert_close(basis.mT @ basis, torch.eye(2 * block_size, dtype=torch.float64))


def test_absolute_interpolates_its_table():
    encoding = make_encoding("absolute")
    positions = torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.5], [9.0, 9.0]], dtype=torch.float64)
    x = encoding.embedding(positions)
    assert_close(x[0], encoding.table[1, 2])
    assert_close(x[2], (x[0] + x[1]) / 2)
    assert_close(x[3], encoding.table[3, 4])  # constant outside the grid


def test_start_of_absolute():
    """The same draw, times the standard deviation."""
    tables = []
    for init_std in (0.02, 1.0):
        torch.manual_seed(0)
        tables.append(make_encoding("absolute", init_std=init_std).table)
    assert_close(tables[0] * 50, tables[1])
    assert_close(make_encoding("absolute", init_std=0.0).table, torch.zeros_like(tables[0]))


def test_absolute_interpolates_by_cubic_convolution_as_torch_does():
    encoding = make_encoding("absolute", interpolation="bicubic")
    table = encoding.table.detach()
    for grid in ((9, 7), (4, 5), (2, 11)):
        positions = grid_positions(grid, mode="interpolate", train_grid=(4, 5), dtype=torch.float64)
        image = table.movedim(-1, 0)[None]  # [1, D, 4, 5]
        expected = torch.nn.functional.interpolate(image, size=grid, mode="bicubic", align_corners=False)[0]
        with naming(grid):
            assert_close(encoding.embedding(positions), expected.flatten(1).T)
    far = torch.tensor([[99.0, -99.0]], dtype=torch.float64)
    assert_close(encoding.embedding(far)[0], table[3, 0])
    for coord_dim in (1, 2, 3):
        other = make_encoding("absolute", coord_dim=coord_dim, interpolation="bicubic")
        cells = grid_positions((4, 5, 3)[:coord_dim], dtype=torch.float64)
        for dtype in (torch.float64, torch.uint8):  # the cell before the first has no unsigned number
            assert_close(other.embedding(cells.to(dtype)), other.table.flatten(0, -2))


def test_sinusoidal_is_its_formula():
    x: Tensor = make_encoding("sinusoidal").embedding(torch.tensor([[2.0, 3.0]], dtype=torch.float64))[0]
    omega = 10000.0 ** (-torch.arange(6, dtype=torch.float64) / 6)
    assert_close(x, torch.cat([(2 * omega).sin(), (3 * omega).sin(), (2 * omega).cos(), (3 * omega).cos()]))
