"""What a move of all positions changes in a model: nothing, or in controls something."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from performer_string import ENCODINGS, grid_positions
from performer_string.position import SeparableEncoding
from tests.helpers.small_vit import POLYNOMIAL, vit


@pytest.mark.parametrize("attention", ["linear", "polynomial", "softmax"])
@pytest.mark.parametrize("name", [name for name, c in ENCODINGS.items() if issubclass(c, SeparableEncoding)])
def test_a_common_move_of_all_positions(name, attention):
    """Exact for softmax, and for features without a draw. One random draw is not invariant, and has to show it."""
    kind = POLYNOMIAL if attention == "polynomial" else {"attention": attention}
    model = vit(encoding=name, **kind).double().eval()
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    with torch.no_grad():
        still, moved = model(images, positions), model(images, positions + torch.tensor([0.37, -2.41]))
    change = (still - moved).abs().max()
    assert change > 1e-7 if attention == "linear" else change < 1e-10


@pytest.mark.parametrize("name", ["circulant-string", "liere", "sinusoidal"])
@pytest.mark.parametrize("centred", [True, False])
def test_centred_positions_make_any_model_invariant(name, centred):
    model = vit(encoding=name, centred=centred).double().eval()
    for p in model.parameters():  # large enough weights for the positions to reach the logits
        torch.nn.init.normal_(p, std=0.3)
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    each = positions + torch.tensor([[[1.3, 0.2]], [[-7.1, 0.4]]])  # a move for each image
    with torch.no_grad():
        still, moved = model(images, positions), [model(images, p) for p in (positions + 1.3, each)]
    change = max(float((still - m).abs().max()) for m in moved)
    assert change < 1e-9 if centred else change > 1e-6
    if centred:
        torch.testing.assert_close(model(images), still)


@pytest.mark.parametrize("locality", [None, "gaussian"])
@pytest.mark.parametrize("values", [("group-action", "rope-mixed"), ("connection", "liere")], ids=lambda v: v[0])
def test_centred_positions_reach_the_values(values, locality):
    """Beside a locality, which sees no move, and in a padded image, whose mean is that of its own patches."""
    own = {"encoding": values[1], "values": values[0], "value_options": {"encoding": values[1]}}
    model = vit(**own, locality=locality, centred=True).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    padded, mask = F.pad(images, (0, 16, 0, 8)), F.pad(torch.ones(2, 4, 3, dtype=torch.bool), (0, 2, 0, 2))
    with torch.no_grad():
        still = model(images)
        for other in (model(images, positions), model(images, positions + 3.7), model(padded, None, mask.flatten(1))):
            torch.testing.assert_close(other, still, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("control", [{"encoding": "absolute"}, {"encoding": "sinusoidal"}, {"pool": "cls"}])
def test_control_models_that_see_a_common_move(control):
    model = vit(**{"attention": "softmax", "encoding": "rope-mixed", **control}).double().eval()
    for p in model.parameters():  # large enough weights for the positions to reach the logits
        torch.nn.init.normal_(p, std=0.3)
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    assert (model(images, positions) - model(images, positions + 0.37)).abs().max() > 1e-6


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_none_is_a_bag_of_patches(encoding):
    model = vit(encoding=encoding, attention="softmax").double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    images = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    swapped = torch.cat([images[..., 8:16], images[..., :8], images[..., 16:]], dim=-1)  # two columns of patches
    assert ((model(images) - model(swapped)).abs().max() < 1e-10) == (encoding == "none")
