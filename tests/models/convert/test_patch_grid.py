"""Where the patches of timm's images lie, which timm does not tell its attention."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from performer_string import performerize

timm = pytest.importorskip("timm")

FEATURES = {"num_features": 16}


def build():
    """Return a model of two blocks that takes images of any size, with rotations by position."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **sizes, dynamic_img_size=True).eval()
    performerize(model, encoding="rope-mixed", feature_options=FEATURES)
    return model


def test_two_threads_have_a_grid_each():
    """Of 16 patches both, so that no number of tokens gives a mix-up away."""
    model, images = build(), [torch.randn(1, 3, 64, 64), torch.randn(1, 3, 32, 128)]
    both_embedded = threading.Barrier(2)
    with torch.no_grad():
        alone = [model(each) for each in images]

    def wait(*_):
        both_embedded.wait(timeout=60)

    def infer(each):
        with torch.no_grad():
            return model(each)

    model.patch_embed.register_forward_hook(wait)

    with ThreadPoolExecutor(2) as pool:
        for got, expected in zip(pool.map(infer, images), alone, strict=True):
            torch.testing.assert_close(got, expected)


def test_checkpointed_blocks_are_computed_again_in_another_thread():
    """As on a GPU, whose backward pass has a thread of its own."""
    model, images = build(), torch.randn(1, 3, 32, 128)
    plain = torch.autograd.grad(model(images).sum(), model.patch_embed.proj.weight)[0]
    model.set_grad_checkpointing()
    out = model.train()(images).sum()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(out.backward).result()
    torch.testing.assert_close(model.patch_embed.proj.weight.grad, plain)


@pytest.mark.slow
def test_compiled_and_exported_models_take_any_size():
    model = build()
    compiled = torch.compile(model, backend="eager", dynamic=True, fullgraph=True)
    sides = {2: 16 * torch.export.Dim("rows", min=1, max=64), 3: 16 * torch.export.Dim("columns", min=1, max=64)}
    exported = torch.export.export(model, (torch.randn(1, 3, 64, 96),), dynamic_shapes={"x": sides}).module()
    for size in ((64, 64), (32, 128), (96, 48)):
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected = model(images)
            for other in (compiled, exported):
                torch.testing.assert_close(other(images), expected, rtol=1e-4, atol=1e-5)
