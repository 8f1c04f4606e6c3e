"""What a move of all positions changes in a model: nothing, or in controls something."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from eval.encodings.translations import expected_of_model
from performer_string import ENCODINGS, VALUE_MAPS, grid_positions
from tests.helpers.cases import case
from tests.helpers.encodings import SEPARABLE
from tests.helpers.small_vit import POLYNOMIAL, large, vit

MOVE = torch.tensor([0.37, -2.41], dtype=torch.float64)
GAUSSIAN = {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.8}}


ROTATED = {"attention": "linear-rotated-features"}
ELU = {"feature_map": "elu", "feature_options": {}}
SOFTMAX = {"attention": "softmax"}
EACH = {  # with every encoding: options, and what a common move of all positions is expected to do
    "softmax": (SOFTMAX, "exact"),
    "polynomial": (POLYNOMIAL, "exact"),
    "rotated features": ({**ROTATED, "feature_options": {"num_features": 12}}, "exact"),
    "one draw": ({"attention": "linear"}, "one draw"),
}
OTHERS = {
    "rotated elu": ({**ROTATED, **ELU}, "exact"),
    "elu": (ELU, "fails by design"),
    "cls": ({**SOFTMAX, "pool": "cls"}, "fails by design"),
    **{
        values: ({**SOFTMAX, **GAUSSIAN, "values": values}, "fails by design" if values == "group-action" else "exact")
        for values in VALUE_MAPS
    },
}
CASES = [(name, *model) for name in SEPARABLE for model in EACH.values()]
CASES += [("rope-mixed", *model) for model in OTHERS.values()]
CASES += [(name, SOFTMAX, "fails by design") for name in ("absolute", "sinusoidal")]
NAMES = [f"{name}, {model}" for name in SEPARABLE for model in EACH] + [*OTHERS, "absolute", "sinusoidal"]


@pytest.mark.parametrize(("encoding", "options", "expected"), CASES, ids=NAMES)
def test_a_common_move_of_all_positions(encoding, options, expected):
    """Also of queries narrower than values. That other distances change the logits is the control."""
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    for qk_dim in (None, 6 if encoding == "pate-so3" else 4):
        with case(f"qk_dim={qk_dim}"), torch.no_grad():
            model = large(vit(encoding=encoding, qk_dim=qk_dim, **options))
            still, moved, wider = (model(images, p) for p in (positions, positions + MOVE, positions * 1.37))
            change = float((still - moved).abs().max())
            assert change < 1e-9 if expected == "exact" else change > 1e-4
            assert (still - wider).abs().max() > 1e-4
            assert expected_of_model(model) == expected


@pytest.mark.parametrize("name", ["circulant-string", "liere", "sinusoidal"])
@pytest.mark.parametrize("centred", [True, False])
def test_centred_positions_make_any_model_invariant(name, centred):
    model = large(vit(encoding=name, centred=centred))
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
    model = large(vit(**own, locality=locality, centred=True))
    images, positions = torch.randn(2, 2, 16, 24, dtype=torch.float64), grid_positions((4, 3), dtype=torch.float64)
    padded, mask = F.pad(images, (0, 16, 0, 8)), F.pad(torch.ones(2, 4, 3, dtype=torch.bool), (0, 2, 0, 2))
    with torch.no_grad():
        still = model(images)
        for other in (model(images, positions), model(images, positions + 3.7), model(padded, None, mask.flatten(1))):
            torch.testing.assert_close(other, still, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_none_is_a_bag_of_patches(encoding):
    model = large(vit(encoding=encoding, attention="softmax"))
    images = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    swapped = torch.cat([images[..., 8:16], images[..., :8], images[..., 16:]], dim=-1)  # two columns of patches
    assert ((model(images) - model(swapped)).abs().max() < 1e-10) == (encoding == "none")
