"""Models in torch's own tools: exported programs that are saved and loaded, the meta device, contiguous weights."""

from __future__ import annotations

import io
from itertools import cycle

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from performer_string import FEATURE_MAPS
from performer_string.layers.values import VALUE_MAPS
from tests.helpers.small_vit import vit

BASES = ("circulant-string", "cayley-string", "pate-so3", "liere", "absolute", "rope")  # one of each kind of rotation
NARROW = {"qk_dim": 4, "key_gate": True}
MODELS = {  # each part in one of them
    f"{feature_map}, {encoding}, {values}": {
        **{"feature_map": feature_map, "feature_options": {}, "encoding": encoding, "values": values},
        **(NARROW if feature_map == "polynomial" else {}),
    }
    for feature_map, encoding, values in zip(cycle(FEATURE_MAPS), BASES, VALUE_MAPS, strict=False)
} | {
    "both": {"attention": ["linear", "softmax"], "depth": 2, "values": "lepe"},
    "linear, decay": {"locality": "gaussian", "locality_options": {"sigma": [2.0, 1.0]}},
    "softmax, tables": {"attention": "softmax", "locality": "table", "absolute_table": "linear", **NARROW},
}


def small(options):
    return vit(**{"depth": 1, **options}, max_dense_tokens=0)


@pytest.mark.slow
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_a_saved_export_is_loaded_with_equal_outputs_for_any_batch(options):
    model, images = small(options).eval(), torch.randn(3, 2, 16, 24)
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model, (images[:2],), dynamic_shapes=batch)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_a_forward_pass_on_the_meta_device_is_counted(options, training):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        out = small(options).train(training)(torch.empty(2, 2, 16, 24))
    assert out.shape[0] == 2
    assert counter.get_total_flops() > 0


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_weights_are_contiguous(name):
    """Or safetensors does not take them."""
    for options in ({}, {"num_features": 4}, {"num_features": 40}):
        if name in ("polynomial", "elu") and options:
            continue
        model = vit(feature_map=name, feature_options=options)
        assert all(x.is_contiguous() for x in model.state_dict().values())
