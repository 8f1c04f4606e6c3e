"""Random features and initial weights of an attention of timm: each block has its own, by the seed alone."""

from __future__ import annotations

import pytest
import torch

from performer_string import performerize

timm = pytest.importorskip("timm")


def parts(seed: int, part: str, **options) -> list[torch.Tensor]:
    """Return what each of two blocks drew."""
    model = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=2, img_size=64, num_classes=5)
    torch.randn(1)  # torch's generator is elsewhere each time
    performerize(model, seed=seed, **options)
    return [block.attn.state_dict()[part] for block in model.blocks]


def test_a_model_of_the_meta_device_has_the_features_of_its_seed():
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64, "num_classes": 5}
    host = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
    weights, images = host.state_dict(), torch.randn(1, 3, 64, 64)
    with torch.device("meta"):
        moved = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
        performerize(moved)
    performerize(host)
    moved.to_empty(device="cpu").load_state_dict(weights)
    assert torch.equal(moved(images), host(images))


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("backend.phi.projection", {}),
        ("encoding.omega", {"encoding": "rope-mixed"}),
        ("values.weight", {"values": "lepe"}),
    ],
    ids=str,
)
def test_blocks_differ_and_the_seed_decides(part, options):
    first, again, other = (parts(seed, part, **options) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
