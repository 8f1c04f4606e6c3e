"""Temporary changes to a model: what is replaced comes back."""

from __future__ import annotations

import torch

from eval.model_changes import ModelChanges
from tests.helpers.small_vit import vit


def test_a_replaced_method_submodule_and_attribute_come_back():
    model = vit(encoding="absolute").eval()
    attention, images = model.attentions()[0], torch.randn(2, 2, 16, 24)
    before, logits, backend, names = dict(vars(model)), model(images), attention.backend, [*model.state_dict()]
    with ModelChanges() as changes:
        changes.replace(model, "table_positions", lambda *_: torch.zeros(24, 2))
        changes.replace(model, "num_prefix", 7)
        changes.replace(attention, "backend", torch.nn.Identity())
        assert model.num_prefix == 7
        assert attention.backend is not backend
        assert not model.table_positions((4, 6)).any()
    assert vars(model) == before
    assert attention.backend is backend
    assert [*model.state_dict()] == names
    assert torch.equal(model(images), logits)
