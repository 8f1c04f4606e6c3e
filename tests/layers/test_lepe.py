"""The convolution of the values against its N x N definition, torch's own convolution, and what it keeps."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from performer_string import batch_images, build_value_map, grid_positions
from performer_string.layers.values import Surroundings
from performer_string.ops import reference
from tests.helpers.small_vit import vit

H, D = 2, 3
STEPS = [(1.0, 1.0), (0.5, 0.5), (0.4, 0.9), (2.0, 1.5), (2.7, 0.3)]


def spaced(grid, steps, start=0.37):
    return start + grid_positions(grid, dtype=torch.float64) * torch.tensor(steps, dtype=torch.float64)


def convolution(dim=2, kernel_size=3):
    return build_value_map("lepe", head_dim=D, num_heads=H, coord_dim=dim, kernel_size=kernel_size).double()


def run(values, v, positions, attend=torch.zeros_like, **more):
    tokens = v.transpose(1, 2).flatten(2)
    return values(attend, v, Surroundings(tokens, v, positions, positions, **more))


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    ("grid", "steps"),
    [((5, 4), steps) for steps in STEPS] + [((7,), (0.3,)), ((3, 2, 5), (1.0, 0.5, 1.3)), ((1, 6), (1.0, 0.7))],
)
def test_it_is_its_definition(grid, steps, prefix, kernel_size):
    """With every gradient; tokens that take no part and prefix tokens are not seen."""
    values, tokens = convolution(len(grid), kernel_size), prefix + math.prod(grid)
    v = torch.randn(2, H, tokens, D, dtype=torch.float64, requires_grad=True)
    positions = torch.cat([torch.zeros(prefix, len(grid), dtype=torch.float64), spaced(grid, steps)])
    mask = torch.rand(2, tokens) < 0.7
    weights = torch.rand(2, H, tokens, tokens, dtype=torch.float64)
    out = run(values, v, positions, lambda x: weights @ x, num_prefix=prefix, key_mask=mask)
    hidden = (v * mask[:, None, :, None])[:, :, prefix:]
    slow = reference.attend(weights, v)
    local = reference.local_sum(hidden, values.weight, positions[prefix:], steps)
    slow = torch.cat([slow[:, :, :prefix], slow[:, :, prefix:] + local], dim=2)
    torch.testing.assert_close(out, slow)
    assert (out - reference.attend(weights, v)).abs().max() > 1e-2
    weight = torch.randn_like(slow)
    pairs = [torch.autograd.grad((x * weight).sum(), [v, values.weight]) for x in (out, slow)]
    for fast, plain in zip(*pairs, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fast, plain)


def test_at_the_training_resolution_it_is_a_common_convolution():
    values, v = convolution(), torch.randn(2, H, 20, D, dtype=torch.float64)
    image = v.transpose(2, 3).reshape(2, H * D, 5, 4)
    out = F.conv2d(image, values.weight.flatten(0, 1)[:, None], padding=1, groups=H * D)
    torch.testing.assert_close(run(values, v, spaced((5, 4), (1.0, 1.0))).transpose(2, 3).reshape(2, H * D, 5, 4), out)


@pytest.mark.parametrize("fine", [2, 3])
def test_a_finer_grid_gives_the_same_at_the_same_places(fine):
    """Exactly for values that are linear in the place, away from the edge; a kernel of the index does not."""
    values, slope = convolution(), torch.randn(2, H, 2, D, dtype=torch.float64)
    outs = []
    for k in (1, fine):
        positions = spaced((6 * k + 1, 6 * k + 1), (1 / k, 1 / k))
        v = positions @ slope + 1  # [2, H, N, D]
        out = run(values, v, positions).unflatten(2, (6 * k + 1, 6 * k + 1))[:, :, ::k, ::k]
        counted = run(values, v, positions * k).unflatten(2, (6 * k + 1, 6 * k + 1))[:, :, ::k, ::k]
        outs.append((out[:, :, 2:-2, 2:-2], counted[:, :, 2:-2, 2:-2]))
    torch.testing.assert_close(outs[1][0], outs[0][0])
    assert (outs[1][1] - outs[0][0]).abs().max() > 0.1


@pytest.mark.parametrize("steps", STEPS)
def test_a_constant_is_kept_at_any_spacing(steps):
    values = convolution()
    v = torch.ones(1, H, 25 * 25, D, dtype=torch.float64)
    middle = run(values, v, spaced((25, 25), steps)).unflatten(2, (25, 25))[0, :, 12, 12]
    torch.testing.assert_close(middle, values.weight.sum((-2, -1)))


def test_it_does_not_see_a_common_move():
    values, v = convolution(), torch.randn(1, H, 12, D, dtype=torch.float64)
    outs = [run(values, v, spaced((4, 3), (0.4, 0.8), start)) for start in (0.0, -17.31)]
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("positions", ["extrapolate", "interpolate", "unit"])
def test_padded_images_of_several_sizes_are_what_they_are_alone(attention, positions):
    model = vit(attention=attention, values="lepe", registers=1, positions=positions).double().eval()
    images = [torch.randn(2, *size, dtype=torch.float64) for size in ((16, 24), (8, 16))]
    with torch.no_grad():
        together = model(**batch_images(model, images))
        torch.testing.assert_close(together, torch.cat([model(image[None]) for image in images]))


def test_no_images_at_places_of_their_own():
    model = vit(values="lepe").double()
    positions = model.grid_positions((4, 3))
    out = model(torch.randn(0, 2, 16, 24).double(), positions=positions.expand(0, -1, -1))
    out.sum().backward()
    assert out.shape[0] == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_model_goes_to_other_sizes():
    """As it is told to place the patches: with squeezed positions the kernel is a wider one."""
    images = torch.randn(1, 2, 32, 48)
    outs = {}
    for mode in ("extrapolate", "interpolate"):
        model = vit(attention="softmax", encoding="none", values="lepe", positions=mode).eval()
        outs[mode] = model(images)
    assert (outs["extrapolate"] - outs["interpolate"]).abs().max() > 1e-4


def test_what_is_wrong_is_said():
    for options, message in (
        ({"kernel_size": 2}, "kernel_size has to be odd and positive, not 2"),
        ({"kernel_size": -1}, "kernel_size has to be odd and positive, not -1"),
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
