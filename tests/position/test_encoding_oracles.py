"""Each family against the form that its source gives, which shares no code with it, and what is peculiar to it."""

from __future__ import annotations

import pytest
import scipy.linalg
import torch
from torch import Tensor

from performer_string import build_encoding, grid_positions
from performer_string.ops import reference
from performer_string.position.skew import GENERATORS
from tests.helpers.encodings import CASES, make, random_positions, scores, with_dimensions


@pytest.mark.parametrize(("case", "coord_dim"), with_dimensions(CASES))
def test_against_scipy(case, coord_dim):
    encoding, positions = make(case, coord_dim=coord_dim), random_positions(3, coord_dim)
    matrix, generators = encoding(positions).matrix().expand(2, -1, -1, -1), encoding.generators().double().detach()
    for head in range(2):
        for n, r in enumerate(positions.tolist()):
            exponent = sum(x * generators[head, c].numpy() for c, x in enumerate(r))
            expected = torch.from_numpy(scipy.linalg.expm(exponent))
            torch.testing.assert_close(matrix[head, n].detach(), expected, rtol=0, atol=1e-9)


def products(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.mT


@pytest.mark.parametrize("block_size", [3, 4, 6, 12])
def test_circulant_is_its_fft_form(block_size, qk):
    encoding, positions = make(("circulant-string", {"block_size": block_size})), random_positions(7, 2)
    q, k = (reference.circulant_rotate(x, encoding.coefficients, block_size, positions) for x in qk)
    torch.testing.assert_close(scores(encoding, *qk, positions), products(q, k))


def test_reflections_are_two_householder_matrices(qk):
    encoding, positions = make(("reflection-string", {})), random_positions(7, 2)
    torch.nn.init.normal_(encoding.mirrors)
    expected = reference.reflections(qk[0], encoding.mirrors, positions)
    torch.testing.assert_close(encoding(positions).rotate(qk[0]), expected)


@pytest.mark.parametrize("along", [None, 0, 1, 2])
def test_so3_is_rodrigues_formula(along, qk):
    """About axes of any direction, those of the coordinates among them."""
    encoding, positions = make(("pate-so3", {})), random_positions(7, 2)
    if along is not None:
        encoding.axis.data[:] = torch.eye(3)[along]
    axis = torch.nn.functional.normalize(encoding.axis, dim=-1)
    q, k = (reference.rodrigues(x, axis, encoding.omega, positions) for x in qk)
    torch.testing.assert_close(scores(encoding, *qk, positions), products(q, k))


@pytest.mark.parametrize("same", [1.0, -1.0, 0.0])
def test_so4_basis_holds_where_its_axes_meet(same):
    """u = v and u = -v are where a fixed choice of basis would divide by zero."""
    encoding, positions = make(("pate-so4", {})), random_positions(7, 2)
    if same:
        encoding.axes.data[1] = same * encoding.axes.data[0]
    matrix = encoding(positions).matrix()
    exponents = torch.einsum("nc,hcij->hnij", positions, encoding.generators()).contiguous()
    torch.testing.assert_close(matrix, torch.linalg.matrix_exp(exponents), rtol=0, atol=1e-9)


def test_block_diagonal_cayley_is_rope(qk):
    """It commutes with the planes' turns, so that the scores are those without it."""
    encoding, positions = (
        make(("cayley-string", {"generator": "block-diagonal", "init_std": 1.0})),
        random_positions(7, 2),
    )
    plain = make(("rope-mixed", {}))
    plain.omega.data = encoding.omega.data
    torch.testing.assert_close(encoding(positions).matrix(), plain(positions).matrix())


def test_block_diagonal_cayley_of_an_odd_width():
    encoding = make(("cayley-string", {"generator": "block-diagonal", "init_std": 1.0}), head_dim=7)
    matrix = encoding(random_positions(5, 2)).matrix()
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(7, dtype=torch.float64).expand_as(matrix))
    assert torch.equal(matrix[..., 6, 6], torch.ones_like(matrix[..., 6, 6]))  # the last dimension stays alone


@pytest.mark.parametrize("generator", GENERATORS)
def test_cayley_bases_are_the_transform_of_their_matrix(generator):
    skew = make(("cayley-string", {"generator": generator, "init_std": 1.0})).generator
    s = skew.skew()
    torch.testing.assert_close(s, -s.mT)
    eye = torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(skew.basis(), (eye - s) @ torch.linalg.inv(eye + s))


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
)
def test_sparse_generators_have_their_support(options, entries, parameters):
    skew = make(("cayley-string", {**options, "init_std": 1.0})).generator
    natural = skew.skew()[:, skew.place][:, :, skew.place]  # rows and columns as the papers number them
    upper = natural.triu(1) != 0
    assert (upper.sum((1, 2)) == entries).all()
    assert skew.entries[0].numel() == parameters
    rows, columns = upper[0].nonzero().unbind(1)
    if "bandwidth" in options:
        assert (columns - rows).max() == options["bandwidth"]
    if options["generator"] == "block-diagonal":
        assert (rows % 2 == 0).all()
        assert (columns == rows + 1).all()


def test_top_k_keeps_the_largest_and_only_they_learn():
    skew = make(("cayley-string", {"generator": "top-k", "k": 9, "init_std": 1.0})).generator
    skew.skew().square().sum().backward()
    learned = skew.entries.grad != 0
    assert (learned.sum(-1) == 9).all()
    for head in range(2):
        size = skew.entries[head].abs()
        assert size[learned[head]].min() > size[~learned[head]].max()


def test_the_random_support_is_saved():
    one = make(("cayley-string", {"generator": "random"}))
    torch.manual_seed(99)
    two = make(("cayley-string", {"generator": "random"}))
    assert not torch.equal(one.generator.support, two.generator.support)
    two.load_state_dict(one.state_dict())
    positions = random_positions(5, 2)
    assert torch.equal(one(positions).matrix(), two(positions).matrix())


def test_liere_is_orthogonal_under_bf16_autocast():
    encoding = build_encoding("liere", head_dim=64, num_heads=2, init_scale=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        matrix = encoding(torch.randn(50, 2) * 10).matrix()
    assert matrix.dtype == torch.float32
    assert (matrix @ matrix.mT - torch.eye(64)).abs().max() < 1e-5


class TestMetric:
    """pate-so2 under a metric M = L L^T of each plane: T = L^-T Rot L^T."""

    def encoding(self, coord_dim: int = 2):
        encoding = build_encoding("pate-so2", head_dim=6, num_heads=2, coord_dim=coord_dim, metric=True, layout="axes")
        torch.nn.init.normal_(encoding.double().root)
        return encoding

    @pytest.mark.parametrize("coord_dim", [1, 2, 3])
    def test_scores_are_those_of_the_transport_under_the_metric(self, coord_dim):
        encoding, positions = self.encoding(coord_dim), random_positions(5, coord_dim)
        low = encoding.basis()[:, None]  # L, [H, 1, d, d]
        metric = low @ low.mT
        exponents = torch.einsum("nc,hcij->hnij", positions, encoding.generators())
        transport = torch.linalg.matrix_exp(exponents.contiguous())
        torch.testing.assert_close(transport.mT @ metric @ transport, metric.expand(-1, 5, -1, -1))  # an isometry of M
        assert torch.linalg.eigvalsh(metric).min() > 0
        q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        rotation = encoding(positions)
        got = rotation.rotate(q) @ rotation.rotate(k).mT
        wanted = torch.einsum("bhia,hixa,hxy,hjyc,bhjc->bhij", q, transport, metric[:, 0], transport, k)
        torch.testing.assert_close(got, wanted)
        full = rotation.matrix()
        torch.testing.assert_close(torch.einsum("bhia,hixa,hjxc,bhjc->bhij", q, full, full, k), wanted)
        torch.testing.assert_close(rotation.outer(rotation.rotate(q)), torch.einsum("hixc,bhic->bhix", transport, q))

    def test_autocast_changes_nothing(self):
        encoding = self.encoding().float()
        with torch.autocast("cpu", torch.bfloat16):
            found = encoding.generators(), encoding(torch.ones(5, 2)).matrix()
        for one, other in zip(found, (encoding.generators(), encoding(torch.ones(5, 2)).matrix()), strict=True):
            assert torch.equal(one, other)

    def test_scores_do_not_see_a_common_move_and_the_basis_folds(self):
        encoding, positions = self.encoding(), random_positions(5, 2)
        q, k = torch.randn(2, 3, 2, 5, 6, dtype=torch.float64)
        moved = positions + torch.tensor([3.37, -1.2], dtype=torch.float64)
        at, after = (encoding(p) for p in (positions, moved))
        torch.testing.assert_close(at.rotate(q) @ at.rotate(k).mT, after.rotate(q) @ after.rotate(k).mT)
        basis, rest = at.factor()
        torch.testing.assert_close(rest.rotate(q @ basis), at.rotate(q))
        assert (at.rotate(q).norm(dim=-1) - q.norm(dim=-1)).abs().max() > 0.1  # no rotation of the Euclidean metric

    def test_it_starts_as_the_rotation_and_every_entry_gets_a_gradient(self):
        options = {"head_dim": 6, "num_heads": 2, "grid": (4, 5)}
        positions = grid_positions((4, 5))
        torch.testing.assert_close(
            build_encoding("pate-so2", metric=True, **options)(positions).matrix(),
            build_encoding("pate-so2", **options)(positions).matrix(),
        )
        encoding, q = self.encoding(), torch.randn(1, 2, 7, 6, dtype=torch.float64)
        rotation = encoding(random_positions(7, 2))
        (rotation.rotate(q) @ rotation.rotate(q.flip(-1)).mT).square().sum().backward()
        assert (encoding.root.grad != 0).all()


@pytest.mark.parametrize(("name", "base"), [("rope", 100.0), ("visionllama", 10000.0)])
def test_axial_frequencies_are_those_of_their_papers(name, base):
    """arXiv:2403.13298 section 3.2 and arXiv:2403.00522: half of the planes for each axis, base^(-t / planes)."""
    encoding = build_encoding(name, head_dim=16, num_heads=1)
    expected = [base ** (-t / 4) for t in range(4)]
    angles = encoding(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)).sin.asin().flatten(0, 1)  # [2, 8]
    for axis in range(2):
        found = sorted((float(x) for x in angles[axis] if x.abs() > 1e-12), reverse=True)
        assert found == pytest.approx(expected, rel=1e-6)


def test_liere_with_blocks_of_two_is_rope_mixed(qk):
    """arXiv:2406.10322: planes commute."""
    liere, mixed = make(("liere", {"block_size": 2})), make(("rope-mixed", {}))
    positions, planes = random_positions(7, 2), qk[0].shape[-1] // 2
    blocks = liere.generators().detach()  # [H, C, d, d]
    at = torch.arange(0, 2 * planes, 2)
    mixed.omega.data.copy_(blocks[:, :, at + 1, at])
    halves = [x.unflatten(-1, (planes, 2)).transpose(-1, -2).flatten(-2) for x in qk]  # planes of p and p + P
    torch.testing.assert_close(scores(liere, *qk, positions), scores(mixed, *halves, positions))
