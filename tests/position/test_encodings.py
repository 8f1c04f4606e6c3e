"""The contract of every encoding: a family gets all of these tests by its line in ENCODINGS."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from performer_string import ENCODINGS, build_encoding, grid_positions
from performer_string.ops import reference
from performer_string.position.frequencies import mixed_frequencies
from tests.helpers.encodings import CASES, FIXED, SEPARABLE, case_id, make, random_positions, scores, with_dimensions

LEARNED = [case for case in CASES if case not in FIXED and ENCODINGS[case[0]].additive is False]


@pytest.mark.parametrize(("case", "coord_dim"), with_dimensions(CASES))
class TestEvery:
    def test_matrix_is_orthogonal(self, case, coord_dim):
        matrix = make(case, coord_dim=coord_dim)(random_positions(7, coord_dim)).matrix()
        eye = torch.eye(12, dtype=torch.float64).expand_as(matrix)
        torch.testing.assert_close(matrix @ matrix.mT, eye, rtol=0, atol=1e-12)

    def test_matrix_is_the_exponential_of_the_generators(self, case, coord_dim):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        generators = encoding.generators().double()
        assert generators.shape == (2, coord_dim, 12, 12)
        torch.testing.assert_close(generators, -generators.mT)
        exponents = torch.einsum("nc,hcij->hnij", positions, generators).contiguous()
        matrix = encoding(positions).matrix().expand(2, -1, -1, -1)
        torch.testing.assert_close(matrix, torch.linalg.matrix_exp(exponents), rtol=0, atol=1e-9)

    def test_rotate_agrees_with_matrix_in_every_inner_product(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        q, k = qk
        matrix = encoding(positions).matrix()
        turned = [(matrix @ x[..., None])[..., 0] for x in (q, k)]
        torch.testing.assert_close(scores(encoding, q, k, positions), turned[0] @ turned[1].mT, rtol=0, atol=1e-10)

    def test_factor_leaves_the_rotation_as_it_is(self, case, coord_dim, qk):
        rotation = make(case, coord_dim=coord_dim)(random_positions(7, coord_dim))
        basis, rest = rotation.factor()
        turned = qk[0] if basis is None else qk[0] @ basis
        torch.testing.assert_close(rest.rotate(turned), rotation.rotate(qk[0]), rtol=0, atol=1e-12)
        assert rest.factor()[0] is None

    def test_unrotate_leads_from_one_place_to_another(self, case, coord_dim, qk):
        """Unrotated at r after a rotation at s is R(r)^-1 R(s), and at the same place it is the identity."""
        encoding, (r, s) = make(case, coord_dim=coord_dim), random_positions(14, coord_dim).chunk(2)
        there, here = encoding(r), encoding(s)
        link = there.matrix().mT @ here.matrix()
        expected = (link @ qk[0][..., None])[..., 0]
        torch.testing.assert_close(there.unrotate(here.rotate(qk[0])), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(here.unrotate(here.rotate(qk[0])), qk[0], rtol=0, atol=1e-10)

    def test_origin_is_the_identity(self, case, coord_dim):
        matrix = make(case, coord_dim=coord_dim)(torch.zeros(1, coord_dim, dtype=torch.float64)).matrix()
        torch.testing.assert_close(matrix, torch.eye(12, dtype=torch.float64).expand_as(matrix), rtol=0, atol=1e-12)

    def test_wrong_dimension_of_positions_names_both(self, case, coord_dim):
        with pytest.raises(ValueError, match=rf"coord_dim={coord_dim}.*\[7, {coord_dim + 1}\]"):
            make(case, coord_dim=coord_dim)(random_positions(7, coord_dim + 1))


@pytest.mark.parametrize(("case", "coord_dim"), with_dimensions(SEPARABLE))
class TestSeparable:
    def test_group_law(self, case, coord_dim):
        encoding, (r, s) = make(case, coord_dim=coord_dim), random_positions(14, coord_dim).chunk(2)
        product = encoding(r).matrix() @ encoding(s).matrix()
        torch.testing.assert_close(product, encoding(r + s).matrix(), rtol=0, atol=1e-11)

    def test_generators_commute(self, case, coord_dim):
        generators = make(case, coord_dim=coord_dim).generators()
        for a in generators.unbind(1):
            for b in generators.unbind(1):
                torch.testing.assert_close(a @ b, b @ a, rtol=0, atol=1e-12)

    def test_scores_do_not_see_a_common_move(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        for move in (0.37, -12.81, 1e3 + 1 / 3):
            moved = positions + move * torch.randn(coord_dim, dtype=torch.float64)
            torch.testing.assert_close(
                scores(encoding, *qk, positions), scores(encoding, *qk, moved), rtol=0, atol=1e-9
            )

    def test_positions_matter(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        for axis in range(coord_dim):  # squeezing any one axis has to show
            squeezed = positions.clone()
            squeezed[:, axis] *= 0.9
            assert not torch.allclose(scores(encoding, *qk, positions), scores(encoding, *qk, squeezed), atol=1e-3)

    def test_batched_positions(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(21, coord_dim).reshape(3, 7, coord_dim)
        together = encoding(positions).rotate(qk[0])
        for i in range(3):
            torch.testing.assert_close(together[i], encoding(positions[i]).rotate(qk[0][i : i + 1])[0])

    def test_half_precision_turns_in_float32(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        exact = encoding(positions).rotate(qk[0])
        single = encoding.float()
        with torch.autocast("cpu", torch.bfloat16):
            turned = single(positions.float()).rotate(qk[0].bfloat16())
        assert turned.dtype == torch.bfloat16
        torch.testing.assert_close(turned.double(), exact, rtol=2**-7, atol=0.05)
        low, rotation = qk[0].bfloat16(), single(positions.float())
        torch.testing.assert_close(rotation.rotate(low), rotation.rotate(low.float()).bfloat16(), rtol=0, atol=0)

    def test_autocast_changes_nothing(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim).float(), random_positions(7, coord_dim).float()
        still, x = encoding(positions), qk[0].float()
        with torch.autocast("cpu", torch.bfloat16):
            rotation = encoding(positions)
            found = (
                rotation.rotate(x),
                rotation.unrotate(x),
                rotation.outer(x),
                rotation.matrix(),
                encoding.generators(),
            )
        exact = still.rotate(x), still.unrotate(x), still.outer(x), still.matrix(), encoding.generators()
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_a_module_in_bf16_rounds_its_parameters_and_nothing_else(self, case, coord_dim, qk):
        low, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim)
        with torch.no_grad():
            for parameter in low.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        low = low.bfloat16()
        exact = copy.deepcopy(low).double()(positions).rotate(qk[0])
        found = low(positions.float()).rotate(qk[0].float())
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)

    def test_positions_may_be_integers(self, case, coord_dim, qk):
        encoding, positions = make(case, coord_dim=coord_dim), torch.randint(-9, 9, (7, coord_dim))
        whole, real = encoding(positions), encoding(positions.double())
        torch.testing.assert_close(whole.rotate(qk[0]), real.rotate(qk[0]))
        torch.testing.assert_close(whole.matrix(), real.matrix(), check_dtype=False)
        assert whole.matrix().is_floating_point()


@pytest.mark.parametrize(("case", "coord_dim"), with_dimensions(LEARNED))
def test_gradients_are_those_of_the_definition(case, coord_dim, qk):
    encoding, positions = make(case, coord_dim=coord_dim), random_positions(7, coord_dim) / 5
    learned = [p for p in encoding.parameters() if p.requires_grad]
    weight = torch.randn(3, 2, 7, 7, dtype=torch.float64)

    def gradients(score: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((score * weight).sum(), learned))

    generators = encoding.generators()
    q, k = (reference.rotate(x, generators, positions) for x in qk)
    fast, slow = gradients(scores(encoding, *qk, positions)), gradients(q @ k.mT)
    for a, b in zip(fast, slow, strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_what_is_not_learned_has_no_parameters():
    for case in FIXED:
        assert not any(p.requires_grad for p in make(case).parameters())


# Controls: what must not pass the tests above, and how they would be passed by a fault.


def test_control_absolute_sees_a_common_move():
    encoding = make(("absolute", {}))
    positions = torch.rand(7, 2, dtype=torch.float64)
    x, moved = encoding.embedding(positions), encoding.embedding(positions + 0.37)
    assert (x @ x.mT - moved @ moved.mT).abs().max() > 1e-4


def test_control_generators_that_do_not_commute_break_invariance(qk):
    generators = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    generators = generators - generators.mT
    positions = random_positions(7, 2) / 10

    def score(r: Tensor) -> Tensor:
        return reference.rotate(qk[0], generators, r) @ reference.rotate(qk[1], generators, r).mT

    assert (score(positions) - score(positions + 0.37)).abs().max() > 0.1


def test_control_cayley_across_heads_breaks_invariance(qk):
    """One basis over the whole width, before the head split: each head sees a projection, and no longer a rotation."""
    from performer_string.position.skew import cayley

    skew = torch.randn(24, 24, dtype=torch.float64)
    basis = cayley(skew - skew.mT)
    encoding, positions = make(("rope", {})), random_positions(7, 2)

    def score(r: Tensor) -> Tensor:
        turned = []
        for x in qk:
            whole = encoding(r).rotate(x).transpose(1, 2).flatten(-2) @ basis.mT  # [B, N, H d]
            turned.append(whole.unflatten(-1, (2, 12)).transpose(1, 2))
        return turned[0] @ turned[1].mT

    assert (score(positions) - score(positions + 0.37)).abs().max() > 0.1


@pytest.mark.parametrize("coord_dim", [1, 2, 3])
def test_control_liere_is_invariant_only_in_blocks_of_two_or_one_dimension(coord_dim, qk):
    for block_size in (2, 4, 12):
        encoding = make(("liere", {"block_size": block_size}), coord_dim=coord_dim)
        positions = random_positions(7, coord_dim) / 10
        change = (scores(encoding, *qk, positions) - scores(encoding, *qk, positions + 0.37)).abs().max()
        assert change < 1e-10 if block_size == 2 or coord_dim == 1 else change > 1e-2


@pytest.mark.parametrize("name", ["pate-so2", "pate-so3", "pate-so4"])
def test_conformal_scaling_is_its_formula_and_absolute(name, qk):
    options = {"conformal_scaling": 0.5, "slow_down": 8.0}
    encoding, positions = make((name, options)), random_positions(7, 2)
    rotation = encoding(positions)
    index = positions[:, 0] * 5 + positions[:, 1]  # raster on the 4 x 5 training grid
    log_lambda = 0.5 * encoding.log_lambda.tanh()
    assert (log_lambda.abs() < 0.5).all()
    scale = torch.exp(log_lambda[:, None] * index / 8.0)  # [H, N]
    plain = make((name, {}))
    plain.load_state_dict(encoding.state_dict(), strict=False)
    torch.testing.assert_close(rotation.matrix(), scale[..., None, None] * plain(positions).matrix())
    q, k = qk
    expected = scale[..., None] * scale[:, None] * scores(plain, q, k, positions)
    torch.testing.assert_close(scores(encoding, q, k, positions), expected)
    assert (scores(encoding, q, k, positions + 0.37) - expected).abs().max() > 1e-3
    whole = positions.long()
    torch.testing.assert_close(encoding(whole).matrix(), encoding(whole.double()).matrix())
    (gradient,) = torch.autograd.grad(scores(encoding, q, k, positions).square().sum(), encoding.log_lambda)
    assert gradient.abs().min() > 0


@pytest.mark.parametrize("name", ["pate-so2", "pate-so3", "pate-so4"])
def test_conformal_scaling_starts_as_a_decay_from_one(name):
    scale = make((name, {"conformal_scaling": 0.5}))(grid_positions((4, 5))).scale
    assert (scale[:, 0] == 1).all()
    assert (scale.diff(dim=-1) < 0).all()


def test_rope_mixed_starts_from_the_magnitudes_of_rope():
    omega = build_encoding("rope-mixed", head_dim=16, num_heads=3).frequencies()
    expected = (10.0 ** (-torch.arange(4) / 4)).repeat(2).expand(3, 8)
    torch.testing.assert_close(omega.norm(dim=1), expected)


@pytest.mark.parametrize("block_size", [3, 4, 8])
def test_circulant_starts_from_the_magnitudes_of_rope(block_size):
    omega = build_encoding("circulant-string", head_dim=24, num_heads=3, block_size=block_size).frequencies()
    planes = omega.shape[-1]
    half = math.ceil(planes / 2)
    expected = (10.0 ** (-torch.arange(half) / half)).repeat(2)[:planes].expand(3, -1)
    torch.testing.assert_close(omega.norm(dim=1), expected)


@pytest.mark.parametrize("coord_dim", [1, 2, 3])
def test_mixed_frequencies_prefer_no_direction(coord_dim):
    """In one dimension, as many heads turn one way as the other."""
    first = mixed_frequencies(4000, coord_dim, coord_dim, 10.0)
    assert first.mean(0).abs().max() < 4.5 * (1 / coord_dim / 4000) ** 0.5


def test_axial_frequencies_are_shared_out():
    omega = build_encoding("rope", head_dim=14, num_heads=1, coord_dim=3).frequencies()[0]
    assert ((omega > 0).sum(0) == 1).all()
    assert (omega > 0).sum(1).tolist() == [3, 2, 2]
    torch.testing.assert_close(omega[0, :3], 100.0 ** (-torch.arange(3) / 3))
    axes = build_encoding("pate-so2", head_dim=12, num_heads=1, layout="axes").frequencies()[0]
    assert (axes > 0).sum(1).tolist() == [3, 3]
    assert ((axes > 0).sum(0) == 1).all()


@pytest.mark.parametrize("block_size", [3, 4, 5, 6, 12])
def test_fourier_basis_is_orthogonal(block_size):
    from performer_string.position.circulant import fourier_basis

    basis = fourier_basis(block_size, 2)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(2 * block_size, dtype=torch.float64))


def test_absolute_is_its_table_on_its_grid_and_interpolates_between():
    encoding = make(("absolute", {}))
    positions = torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.5], [9.0, 9.0]], dtype=torch.float64)
    x = encoding.embedding(positions)
    torch.testing.assert_close(x[0], encoding.table[1, 2])
    torch.testing.assert_close(x[2], (x[0] + x[1]) / 2)
    torch.testing.assert_close(x[3], encoding.table[3, 4])  # held constant outside


def test_sinusoidal_is_its_formula():
    x = make(("sinusoidal", {})).embedding(torch.tensor([[2.0, 3.0]], dtype=torch.float64))[0]
    omega = 10000.0 ** (-torch.arange(6, dtype=torch.float64) / 6)
    expected = torch.cat([(2 * omega).sin(), (3 * omega).sin(), (2 * omega).cos(), (3 * omega).cos()])
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_generators_can_be_built_without_memory(case):
    with torch.device("meta"):
        encoding = make(case)
    assert all(p.is_meta for p in encoding.parameters())
