"""The convolution of the values against its N x N definition and torch's convolution, and its invariances."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F

from performer_string import batch_images, build_value_map, grid_positions
from performer_string.layers.values.lepe import interpolation_matrix, matrix_of
from performer_string.ops import reference, reference_positions
from performer_string.ops.layout import TokenLayout, make_grid
from tests.helpers.cases import case
from tests.helpers.decays import assert_equal
from tests.helpers.small_vit import vit

H, D = 2, 3
STEPS = [(1.0, 1.0), (0.5, 0.5), (0.4, 0.9), (2.0, 1.5), (2.7, 0.3)]
GRIDS = [*(((5, 4), steps) for steps in STEPS), ((7,), (0.3,)), ((3, 2, 5), (1.0, 0.5, 1.3)), ((1, 6), (1.0, 0.7))]


def spaced(grid, steps, start=0.37):
    return start + grid_positions(grid, dtype=torch.float64) * torch.tensor(steps, dtype=torch.float64)


def convolution(dim=2, kernel_size=3):
    return build_value_map("lepe", head_dim=D, num_heads=H, coord_dim=dim, kernel_size=kernel_size).double()


def run(values, v, positions, attend=torch.zeros_like, **more):
    tokens = v.transpose(1, 2).flatten(2)
    return values(attend, v, tokens=tokens, queries=v, layout=TokenLayout(positions, **more))


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_convolution_is_the_definition_with_every_gradient(kernel_size):
    """At any spacing and odd sizes; masked and prefix tokens count as zero."""
    for grid, steps in GRIDS:
        for prefix in (0, 2):
            with case(grid, steps, prefix):
                values, tokens = convolution(len(grid), kernel_size), prefix + math.prod(grid)
                v = torch.randn(2, H, tokens, D, dtype=torch.float64, requires_grad=True)
                positions = torch.cat([torch.zeros(prefix, len(grid), dtype=torch.float64), spaced(grid, steps)])
                mask = torch.rand(2, tokens) < 0.7
                weights = torch.rand(2, H, tokens, tokens, dtype=torch.float64)
                out = run(values, v, positions, partial(torch.matmul, weights), num_prefix=prefix, mask=mask)
                patches = (v * mask[:, None, :, None])[:, :, prefix:]
                attended = reference.attend(weights, v)
                local = reference_positions.local_sum(patches, values.weight, positions[prefix:], steps)
                slow = torch.cat([attended[:, :, :prefix], attended[:, :, prefix:] + local], dim=2)
                assert (out - attended).abs().max() > 1e-2
                assert_equal(out, slow, [v, values.weight])


def test_torch_convolution_at_the_training_resolution():
    values, v = convolution(), torch.randn(2, H, 20, D, dtype=torch.float64)
    image = v.transpose(2, 3).reshape(2, H * D, 5, 4)
    out = F.conv2d(image, values.weight.flatten(0, 1)[:, None], padding=1, groups=H * D)
    torch.testing.assert_close(run(values, v, spaced((5, 4), (1.0, 1.0))).transpose(2, 3).reshape(2, H * D, 5, 4), out)


def test_finer_grid_gives_the_same_at_the_same_places():
    """Exactly for values linear in the position, away from the edge; a kernel of the index does not."""
    values, slope = convolution(), torch.randn(2, H, 2, D, dtype=torch.float64)
    outs = {}
    for fine in (1, 2, 3):
        size = (6 * fine + 1, 6 * fine + 1)
        positions = spaced(size, (1 / fine, 1 / fine))
        v = positions @ slope + 1  # [2, H, N, D]
        for name, scale in (("offset", 1), ("index", fine)):
            coarse = run(values, v, positions * scale).unflatten(2, size)[:, :, ::fine, ::fine]
            outs[name, fine] = coarse[:, :, 2:-2, 2:-2]
    for fine in (2, 3):
        torch.testing.assert_close(outs["offset", fine], outs["offset", 1])
        assert (outs["index", fine] - outs["offset", 1]).abs().max() > 0.1


def test_constant_is_preserved_at_any_spacing():
    values = convolution()
    v = torch.ones(1, H, 25 * 25, D, dtype=torch.float64)
    for steps in STEPS:
        middle = run(values, v, spaced((25, 25), steps)).unflatten(2, (25, 25))[0, :, 12, 12]
        torch.testing.assert_close(middle, values.weight.sum((-2, -1)))


def test_invariant_to_a_translation():
    values, v = convolution(), torch.randn(1, H, 12, D, dtype=torch.float64)
    outs = [run(values, v, spaced((4, 3), (0.4, 0.8), start)) for start in (0.0, -17.31)]
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_padded_images_are_what_they_are_alone(attention):
    for positions in ("extrapolate", "interpolate"):
        with case(positions), torch.no_grad():
            model = vit(attention=attention, values="lepe", registers=1, positions=positions).double().eval()
            images = [torch.randn(2, *size, dtype=torch.float64) for size in ((16, 24), (8, 16))]
            together = model(**batch_images(model, images))
            torch.testing.assert_close(together, torch.cat([model(image[None]) for image in images]))


def test_no_images_with_positions_for_each():
    model = vit(values="lepe").double()
    positions = model.grid_positions((4, 3))
    out = model(torch.randn(0, 2, 16, 24).double(), positions=positions.expand(0, -1, -1))
    out.sum().backward()
    assert out.shape[0] == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_model_at_other_sizes():
    """With interpolated positions the kernel covers more patches."""
    images = torch.randn(1, 2, 32, 48)
    outs = {}
    for mode in ("extrapolate", "interpolate"):
        model = vit(attention="softmax", encoding="none", values="lepe", positions=mode).eval()
        outs[mode] = model(images)
    assert (outs["extrapolate"] - outs["interpolate"]).abs().max() > 1e-4


@pytest.mark.parametrize("registers", [0, 2])
def test_positions_of_a_model_that_form_no_grid(registers):
    """The convolution has the image's own grid then. Without an encoding nothing else depends on positions."""
    model = vit(values="lepe", encoding="none", registers=registers)
    images = torch.randn(2, 2, *(n * p for n, p in zip((5, 6), model.patch, strict=True)))
    positions = model.grid_positions((5, 6))
    rows, columns = torch.tensor([0, 3, 4, 9, 11.0]), torch.tensor([1, 2, 6, 7, 9, 20.0])
    uneven = torch.cartesian_prod(rows, columns)
    assert torch.equal(model(images, uneven), model(images))
    assert torch.equal(model(images, uneven.expand(2, -1, -1)), model(images))
    assert not torch.allclose(model(images, 2 * positions), model(images), atol=1e-4)
    rotated = vit(values="lepe", registers=registers)
    assert not torch.allclose(rotated(images, uneven), rotated(images), atol=1e-4)


def test_bad_options_and_positions():
    for options, message in (
        ({"kernel_size": 2}, "kernel_size must be odd and positive, not 2"),
        ({"kernel_size": -1}, "kernel_size must be odd and positive, not -1"),
        ({"coord_dim": 4}, "a convolution of one to three axes, not of 4"),
        ({"kernel": 3}, "no option 'kernel'. Did you mean 'kernel_size'"),
    ):
        with pytest.raises(ValueError, match=message):
            build_value_map("lepe", head_dim=D, num_heads=H, **options)
    v = torch.randn(2, H, 12, D, dtype=torch.float64)
    grids = torch.stack([spaced((4, 3), (1.0, 1.0)), torch.rand(12, 2).double()])
    for positions in (torch.rand(12, 2).double(), grids):
        with pytest.raises(ValueError, match=r"needs positions \[N, C\] or \[B, N, C\] of row-major grids"):
            run(convolution(), v, positions)


def test_fake_tensors_are_not_kept():
    """A pass on fake tensors leaves none in the cache of the matrices, and reads none with values from there."""
    convolve, grid = convolution().float(), make_grid((4, 3), (0.37, 1.9))
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext(), FakeTensorMode(allow_non_fake_inputs=True)):
        kind = torch.Tensor if isinstance(mode, nullcontext) else FakeTensor
        with mode, torch.no_grad():
            assert type(convolve.convolve(torch.empty(1, H, 12, D), grid)) is kind
            assert type(matrix_of(3, 0.37, convolve.weight.device, torch.float32)) is kind


def test_another_default_device():
    """A default of `meta`, under which models are built, does not reach a model that has values."""
    weights = interpolation_matrix(3, 1.0)
    with torch.device("meta"):
        assert torch.equal(interpolation_matrix(3, 1.0), weights)


def test_an_empty_sequence_among_packed_ones():
    convolve, v = convolution(), torch.randn(1, H, 12, D, dtype=torch.float64)
    layout = TokenLayout(spaced((4, 3), (1.0, 1.0)))
    arguments = {"tokens": v[:, 0], "queries": v}
    alone = convolve(lambda x: x, v, layout=layout, **arguments)
    packed = convolve(lambda x: x, v, layout=layout.replace(lengths=(12, 0)), **arguments)
    torch.testing.assert_close(packed, alone)
