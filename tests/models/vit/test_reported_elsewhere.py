"""Kinds of faults that people report of other libraries, each tried here on the whole model."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch

from performer_string import ENCODINGS, ViT, ViTConfig, build_feature_map, linear_attention

SIZES = {"width": 24, "depth": 2, "num_heads": 2, "num_classes": 3, "patch_size": 8, "image_size": 32}
ATTENTIONS = ["linear", "softmax"]


def build(**options) -> ViT:
    features = {} if options.get("attention") == "softmax" else {"feature_options": {"num_features": 16}}
    torch.manual_seed(0)
    return ViT(ViTConfig(**{**SIZES, **features, **options})).eval()


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4)


def test_grids_of_equally_many_tokens_have_other_positions():
    """timm 2737: a table of 2 x 8 positions served a grid of 4 x 4 as it was."""
    model = build(image_size=[16, 64], encoding="absolute", positions="interpolate")
    torch.nn.init.normal_(model.encoding.table)
    wide, square, tall = (model(torch.ones(1, 3, *size)) for size in ((16, 64), (32, 32), (64, 16)))
    assert not close(wide, square)
    assert not close(square, tall)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_samples_of_a_batch_do_not_meet(attention):
    """TransformerEngine 536: micro-batches took each other's positions."""
    model, images = build(attention=attention, encoding="rope-mixed"), torch.randn(5, 3, 32, 32)
    images[0] *= 1e3
    assert close(model(images), torch.cat([model(image[None]) for image in images]))
    assert model(images[:0]).shape == (0, 3)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_images_in_any_layout(attention):
    model, images = build(attention=attention), torch.randn(2, 3, 32, 32)
    expected = model(images)
    strided = torch.empty(2, 3, 32, 64)[..., ::2].copy_(images)
    for each in (images.contiguous(memory_format=torch.channels_last), strided, images.mT.contiguous().mT):
        assert close(model(each), expected)
    assert close(model(images[:1].expand(4, -1, -1, -1)), expected[:1].expand(4, -1))


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_training_after_inference_mode(encoding):
    """Tensors that were kept in inference mode cannot be saved for a backward pass."""
    model, images = build(encoding=encoding, depth=1, locality="gaussian"), torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        model(images)
    for trained in (model, model.train()):
        trained(images).sum().backward()


def test_copies_after_a_pass_and_both_modes_are_deterministic():
    """performer-pytorch 10: features were drawn again in evaluation."""
    model, images = build(), torch.randn(2, 3, 32, 32)
    expected = model(images)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.train()):
        assert torch.equal(each(images), expected)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_two_backward_passes_with_a_class_token(attention):
    """rope-vit 14: a rotation in place of all tokens but the first spoiled the backward pass."""
    model = build(attention=attention, pool="cls", registers=2)
    with torch.autograd.set_detect_anomaly(True):
        loss = model(torch.randn(2, 3, 32, 32)).square().sum()
        loss.backward(retain_graph=True)
        once = model.embed.weight.grad.clone()
        loss.backward()
    assert close(model.embed.weight.grad, 2 * once)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_short_packed_sequences_have_the_gradients_of_each_alone(attention):
    """flash-linear-attention 836 and 1140: wrong gradients of short sequences, and of a width of 100."""
    model = build(attention=attention, width=100).double()
    images = [torch.randn(3, *size).double() for size in ((8, 8), (8, 16), (40, 24), (8, 8))]
    results = []
    for logits in (model(images), torch.cat([model(each[None]) for each in images])):
        learned = [p for p in model.parameters() if p.requires_grad]
        results.append([logits, *torch.autograd.grad(logits.square().sum(), learned)])
    for packed, alone in zip(*results, strict=True):
        torch.testing.assert_close(packed, alone, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", ["favor+", "arc-cosine", "polynomial"])
def test_more_tokens_than_16_bits_count(kind):
    """flash-linear-attention 906: tokens behind the 65,536th were left out."""
    phi = build_feature_map(kind, head_dim=4, num_heads=1, **({} if kind == "polynomial" else {"num_features": 8}))
    q, k, v = torch.randn(3, 1, 1, 65_537, 4)
    out = linear_attention(q, k, v, phi)[:, :, -1:]
    exact = linear_attention(q[:, :, -1:].double(), k.double(), v.double(), copy.deepcopy(phi).double())
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-3)


def test_checkpointed_blocks_behind_frozen_ones_are_trained():
    """transformers: gradient checkpoints whose inputs need no gradient gave none to their weights."""
    model, images = build().train(), torch.randn(2, 3, 32, 32)
    for frozen in (model.embed, model.blocks[0]):
        frozen.requires_grad_(False)
    learned = [p for p in model.parameters() if p.requires_grad]
    plain = torch.autograd.grad(model(images).square().sum(), learned)
    model.grad_checkpointing = True
    for a, b in zip(plain, torch.autograd.grad(model(images).square().sum(), learned), strict=True):
        assert close(a, b)


def test_threads_share_a_model_within_cached():
    model, images = build(encoding="cayley-string"), [torch.randn(1, 3, 32 + 8 * i, 32) for i in range(4)]
    expected, wrong = [model(each).detach() for each in images], []

    def work(i: int) -> None:
        with torch.no_grad():
            wrong.extend(i for _ in range(20) if not close(model(images[i]), expected[i]))

    with model.cached():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
