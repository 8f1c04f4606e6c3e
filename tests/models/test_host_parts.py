"""Random features of a host's attention: each block has a draw of its own, by the seed alone."""

from __future__ import annotations

import pytest
import torch

from performer_string import performerize

timm = pytest.importorskip("timm")


def parts(seed: int) -> list[torch.Tensor]:
    """Return the random features of each of two blocks."""
    model = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=2, img_size=64, num_classes=5)
    performerize(model, seed=seed)
    return [block.attn.backend.phi.projection for block in model.blocks]


def test_blocks_differ_and_the_seed_decides():
    first, again, other = parts(0), parts(0), parts(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
