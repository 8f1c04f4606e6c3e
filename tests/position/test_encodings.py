"""The laws of every encoding, which a family gets by its line in ENCODINGS."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from performer_string import ENCODINGS, build_encoding
from performer_string.ops import reference
from tests.helpers.encodings import (
    ROTATING,
    SEPARABLE,
    exponentials,
    naming,
    scores,
    variants,
)

MOVE = 0.37  # patches, which no grid of cells repeats


@pytest.mark.parametrize("name", ENCODINGS)
class TestEvery:
    def test_matrix_is_orthogonal_and_at_the_origin_the_identity(self, name):
        eye = torch.eye(12, dtype=torch.float64)
        for variant in variants(name):
            with naming(variant):
                encoding, origin = variant.make(), torch.zeros(1, variant.coord_dim, dtype=torch.float64)
                matrix = encoding(variant.positions()).matrix()
                assert_close(matrix @ matrix.mT, eye.expand_as(matrix), rtol=0, atol=1e-12)
                at_origin = encoding(origin).matrix()
                assert_close(at_origin, eye.expand_as(at_origin), rtol=0, atol=1e-12)

    def test_matrix_is_exponential_of_generators(self, name):
        for variant in variants(name):
            with naming(variant):
                encoding, positions = variant.make(), variant.positions()
                generators = encoding.generators()
                assert generators.shape == (2, variant.coord_dim, 12, 12)
                assert_close(generators, -generators.mT)
                matrix = encoding(positions).matrix().expand(2, -1, -1, -1)
                with naming("R(r) is not exp(sum_k r_k L_k), whose plane p is that of dimensions p and p + d / 2"):
                    assert_close(matrix, exponentials(encoding, positions), rtol=0, atol=1e-9)

    def test_rotate_agrees_with_matrix_in_inner_products(self, name, qk):
        for variant in variants(name):
            with naming(variant):
                encoding, positions = variant.make(), variant.positions()
                matrix = encoding(positions).matrix()
                q, k = ((matrix @ x[..., None])[..., 0] for x in qk)
                assert_close(scores(encoding, *qk, positions), q @ k.mT, rtol=0, atol=1e-10)

    def test_factored_basis_and_rest_are_the_rotation(self, name, qk):
        for variant in variants(name):
            with naming(variant):
                rotation = variant.make()(variant.positions())
                basis, rest = rotation.factor()
                x = qk[0] if basis is None else qk[0] @ basis
                assert_close(rest.rotate(x), rotation.rotate(qk[0]), rtol=0, atol=1e-12)
                assert rest.factor()[0] is None

    def test_unrotate_inverts_rotate(self, name, qk):
        """Unrotating at r after rotating at s is R(r)^-1 R(s), which is the identity at r = s."""
        for variant in variants(name):
            with naming(variant):
                encoding, x = variant.make(), qk[0]
                at_r, at_s = encoding(variant.positions()), encoding(variant.positions())
                expected = (at_r.matrix().mT @ at_s.matrix() @ x[..., None])[..., 0]
                assert_close(at_r.unrotate(at_s.rotate(x)), expected, rtol=0, atol=1e-10)
                assert_close(at_s.unrotate(at_s.rotate(x)), x, rtol=0, atol=1e-10)

    def test_outer_completes_rotate(self, name, qk):
        for variant in variants(name):
            with naming(variant):
                rotation = variant.make()(variant.positions())
                expected = (rotation.matrix() @ qk[0][..., None])[..., 0]
                assert_close(rotation.outer(rotation.rotate(qk[0])), expected, rtol=0, atol=1e-10)

    def test_meta_device_builds_without_memory(self, name):
        for variant in variants(name):
            with naming(variant), torch.device("meta"):
                assert all(p.is_meta for p in variant.make().parameters())


@pytest.mark.parametrize("name", SEPARABLE)
class TestSeparable:
    def test_rotations_form_a_group(self, name):
        for variant in variants(name):
            with naming(variant):
                encoding, r, s = variant.make(), variant.positions(), variant.positions()
                product = encoding(r).matrix() @ encoding(s).matrix()
                assert_close(product, encoding(r + s).matrix(), rtol=0, atol=1e-11)

    def test_generators_commute(self, name):
        for variant in variants(name):
            with naming(variant):
                generators = variant.make().generators()
                a, b = generators[:, :, None], generators[:, None]
                assert_close(a @ b, b @ a, rtol=0, atol=1e-12)

    def test_scores_depend_on_offsets_only(self, name, qk):
        for variant in variants(name):
            encoding, positions = variant.make(), variant.positions()
            for size in (MOVE, -12.81, 1e3 + 1 / 3):
                with naming((variant, size)):
                    moved = positions + size * torch.randn(variant.coord_dim, dtype=torch.float64)
                    before, after = scores(encoding, *qk, positions), scores(encoding, *qk, moved)
                    assert_close(before, after, rtol=0, atol=1e-9)

    def test_scores_depend_on_every_axis(self, name, qk):
        for variant in variants(name):
            encoding, positions = variant.make(), variant.positions()
            for axis in range(variant.coord_dim):
                squeezed = positions.clone()
                squeezed[:, axis] *= 0.9
                change = scores(encoding, *qk, positions) - scores(encoding, *qk, squeezed)
                assert change.abs().max() > 1e-3, (variant, axis)


@pytest.mark.parametrize("name", ROTATING)
class TestRotating:
    def test_samples_may_have_different_positions(self, name, qk):
        for variant in variants(name):
            with naming(variant):
                encoding = variant.make()
                positions = torch.stack([variant.positions() for _ in range(3)])
                apart = [encoding(r).rotate(x[None])[0] for r, x in zip(positions, qk[0], strict=True)]
                rotation = encoding(positions)
                assert_close(rotation.rotate(qk[0]), torch.stack(apart))
                each = [rotation.of_sample(i).rotate(x[None])[0] for i, x in enumerate(qk[0])]
                assert_close(torch.stack(each), torch.stack(apart))

    def test_half_precision_inputs_are_rotated_in_float32(self, name, qk):
        for variant in variants(name, all_dimensions=False):
            with naming(variant):
                encoding, positions, low = variant.make(), variant.positions(), qk[0].bfloat16()
                exact, single = encoding(positions).rotate(qk[0]), encoding.float()
                with torch.autocast("cpu", torch.bfloat16):
                    rotated = single(positions.float()).rotate(low)
                assert rotated.dtype == torch.bfloat16
                assert_close(rotated.double(), exact, rtol=2**-7, atol=0.05)
                rotation = single(positions.float())
                assert_close(rotation.rotate(low), rotation.rotate(low.float()).bfloat16(), rtol=0, atol=0)

    def test_autocast_changes_nothing(self, name, qk):
        for variant in variants(name, all_dimensions=False):
            encoding, positions, x = variant.make().float(), variant.positions().float(), qk[0].float()

            def outputs(encoding=encoding, positions=positions, x=x) -> dict[str, Tensor]:
                rotation = encoding(positions)
                methods = {name: getattr(rotation, name)(x) for name in ("rotate", "unrotate", "outer")}
                of_library = type(encoding).__module__.startswith("performer_string.")
                methods |= {"generators": encoding.generators()} if of_library else {}
                return {**methods, "matrix": rotation.matrix()}

            with naming(variant):
                exact = outputs()
                with torch.autocast("cpu", torch.bfloat16):
                    assert_close(outputs(), exact, rtol=0, atol=0)

    def test_bf16_modules_round_nothing_but_parameters(self, name, qk):
        for variant in variants(name, all_dimensions=False):
            with naming(variant):
                low, positions = variant.make(), variant.positions()
                with torch.no_grad():
                    for parameter in low.parameters():
                        parameter += 0.1 * torch.randn_like(parameter)
                low = low.bfloat16()
                exact = copy.deepcopy(low).double()(positions).rotate(qk[0])
                rotated = low(positions.float()).rotate(qk[0].float())
                assert_close(rotated.double(), exact, rtol=0, atol=1e-4)

    def test_integer_positions(self, name, qk):
        for variant in variants(name, all_dimensions=False):
            with naming(variant):
                encoding, positions = variant.make(), torch.randint(-9, 9, (7, 2))
                integer, real = encoding(positions), encoding(positions.double())
                assert_close(integer.rotate(qk[0]), real.rotate(qk[0]))
                assert_close(integer.matrix(), real.matrix(), check_dtype=False)
                assert integer.matrix().is_floating_point()


@pytest.mark.parametrize("name", ROTATING)
def test_gradients_are_those_of_the_definition(name, qk):
    """An encoding without a gradient has nothing learned."""
    upstream = torch.randn(3, 2, 7, 7, dtype=torch.float64)
    for variant in variants(name):
        encoding, positions = variant.make(), variant.positions() / 5
        learned = [p for p in encoding.parameters() if p.requires_grad]
        fixed = name in ("rope", "visionllama") or variant.options.get("learn_angles") is False
        assert bool(learned) is not fixed, variant
        if fixed:
            continue
        generators = encoding.generators()
        q, k = (reference.rotate(x, generators, positions) for x in qk)
        fast, slow = (
            torch.autograd.grad((out * upstream).sum(), learned) for out in (scores(encoding, *qk, positions), q @ k.mT)
        )
        with naming(variant):
            assert all(gradient.abs().max() > 0 for gradient in slow)
            assert_close(fast, slow, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ENCODINGS)
def test_one_line_builds_without_a_grid(name):
    sizes = {"head_dim": 12, "num_heads": 2}
    if name == "absolute":
        with pytest.raises(ValueError, match="absolute: needs the training grid"):
            build_encoding(name, **sizes)
    else:
        assert build_encoding(name, **sizes)(torch.rand(5, 2)).matrix().shape[-2:] == (12, 12)
