"""LayerScale: a learned factor for each channel of the branches of every block."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViTConfig
from tests.helpers.small_vit import large, vit

SCALED = "attention.out", "mlp.2"  # the layers before the factors


def folded(model):
    """Return a model without factors, which are multiplied into the layers before them, as functions of both."""
    plain = large(vit())
    weights = dict(model.named_parameters())
    state = {name: value for name, value in weights.items() if not name.endswith("factors")}
    for number in range(len(model.blocks)):
        for place, layer in enumerate(SCALED, start=1):
            factors = weights[f"blocks.{number}.scale{place}.factors"]
            name = f"blocks.{number}.{layer}"
            state[f"{name}.weight"] = factors[:, None] * weights[f"{name}.weight"]
            state[f"{name}.bias"] = factors * weights[f"{name}.bias"]
    return plain, {**dict(model.named_buffers()), **state}


@pytest.mark.parametrize("packed", [False, True])
def test_factors_multiply_the_branches(packed):
    """Outputs and the gradient of every factor are those of factors in the projections."""
    model = large(vit(layer_scale=0.5))
    plain, state = folded(model)
    images = torch.randn(2, 2, 16, 24, dtype=torch.float64)
    given = list(images) if packed else images
    out, expected = model(given), torch.func.functional_call(plain, state, (given,))
    torch.testing.assert_close(out, expected)
    factors = [p for name, p in model.named_parameters() if name.endswith("factors")]
    assert len(factors) == 6
    gradients = zip(*(torch.autograd.grad(x.square().sum(), factors) for x in (out, expected)), strict=True)
    for one, two in gradients:
        assert one.any()
        torch.testing.assert_close(one, two)


def test_they_start_at_their_value_without_decay_and_change_nothing_else():
    torch.manual_seed(0)
    model = vit(layer_scale=1e-4)
    torch.manual_seed(0)
    plain = vit()
    scaled = {name: p for name, p in model.named_parameters() if name.endswith("factors")}
    assert all((p == torch.tensor(1e-4)).all() for p in scaled.values())
    assert scaled.keys() <= model.no_weight_decay()
    weights = dict(plain.named_parameters())
    assert {**weights, **scaled}.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters() if name in weights)
    with torch.no_grad():
        x = torch.randn(1, 7, 24)
        assert (model.blocks[0](x) - x).abs().max() < 1e-3 < (plain.blocks[0](x) - x).abs().max()


@pytest.mark.parametrize("value", [0.0, -1e-4])
def test_a_value_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="layer_scale must be"):
        ViTConfig(layer_scale=value)


def test_its_name_in_timm():
    with pytest.raises(TypeError, match="layer_scale"):
        ViTConfig(init_values=1e-4)
    timm = pytest.importorskip("timm")
    import performer_string.timm  # noqa: F401  (registers the models)

    model = timm.create_model("performer_string_micro_patch16_224", init_values=1e-4)
    assert model.config.layer_scale == 1e-4
