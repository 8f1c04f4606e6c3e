"""Initial weights: one stream for each component, so that models which differ in one thing are paired seed by seed."""

from __future__ import annotations

import pytest
import torch

from performer_string import ENCODINGS, ViT
from performer_string.models.vit import build as models_build
from tests.helpers.small_vit import vit


def built(seed: int, **changes: object) -> ViT:
    torch.manual_seed(seed)
    return vit(**changes)


def shared(one: ViT, other: ViT, *parts: str) -> list[str]:
    """The weights that both models have, without those of the parts that differ."""
    names = one.state_dict().keys() & other.state_dict().keys()
    return [name for name in names if not any(part in name for part in parts)]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        *(({"encoding": name}, ["encoding."]) for name in ENCODINGS),
        ({"values": "lepe"}, [".values."]),
        ({"values": "gating"}, [".values."]),
        ({"locality": "radial"}, [".locality."]),
        ({"share_layers": True}, ["encoding."]),
        ({"key_gate": True}, []),
        ({"registers": 3}, ["prefix"]),
        ({"feature_map": "polynomial", "feature_options": {}}, [".phi."]),
        ({"attention": "softmax"}, [".phi."]),
        ({"num_classes": 7}, ["head."]),
    ],
    ids=str,
)
def test_a_change_of_one_component_leaves_the_weights_of_all_others(changes, parts):
    base, changed, other = built(3), built(3, **changes), built(4)
    names = shared(base, changed, *parts)
    assert len(names) > 10
    for name in names:
        assert torch.equal(base.state_dict()[name], changed.state_dict()[name]), name
    drawn = [name for name in names if name.endswith("weight") and "norm" not in name]
    assert not any(torch.equal(base.state_dict()[name], other.state_dict()[name]) for name in drawn)


def test_torchs_generator_moves_on_alike_whatever_the_model():
    after = set()
    for changes in ({}, {"encoding": "rope"}, {"values": "lepe"}, {"attention": "performer-pytorch"}):
        built(5, **changes)
        after.add(float(torch.rand(())))
    assert len(after) == 1


def test_no_two_layers_start_alike():
    model = built(0, depth=3)
    weights = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    for i, p in enumerate(weights):
        assert not any(p.shape == q.shape and torch.equal(p, q) for q in weights[:i])


@pytest.mark.parametrize(("encoding", "count"), [("liere", 1), ("absolute", 1), ("rope", 2)])
def test_a_learned_encoding_is_built_once(encoding, count, monkeypatch):
    """It was built for one layer before, to see whether it learns."""
    calls, build = [], models_build.build_encoding
    monkeypatch.setattr(models_build, "build_encoding", lambda *a, **k: calls.append(a) or build(*a, **k))
    vit(encoding=encoding, depth=3)
    assert len(calls) == count
