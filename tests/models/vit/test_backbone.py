"""A ViT as a backbone: in other dimensions, without a head, with patches in their places, with less memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parametrizations

from performer_string import ENCODINGS, ViT, fold, grid_positions
from performer_string.models.vit.patches import patchify
from tests.helpers.small_vit import SMALL, large, vit

SHAPES = {1: ([30], [3]), 3: ([4, 6, 8], [2, 3, 2])}  # image and patch


def solid(dim: int, **changes) -> ViT:
    image, patch = SHAPES[dim]
    return ViT(replace(SMALL, image_size=image, patch_size=patch, **changes))


@pytest.mark.parametrize(
    ("encoding", "dim"), [(name, dim) for name in ENCODINGS for dim in SHAPES if (name, dim) != ("pate-so4", 3)]
)
def test_sequences_and_volumes(encoding, dim):
    """Invariant to a move along every axis, under softmax; any size that the patches divide; all generators learned."""
    model = large(solid(dim, encoding=encoding, attention="softmax"))
    image, patch = SHAPES[dim]
    longer = [size + 2 * p for size, p in zip(image, patch, strict=True)]
    images = torch.randn(2, 2, *longer).double()
    logits = model(images)
    logits.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.encoding.parameters())
    positions = model.grid_positions(model.grid(*longer))
    assert torch.equal(model(images, positions), logits)
    if encoding not in ("absolute", "sinusoidal", "liere"):
        moved = positions + torch.linspace(0.7, 3.3, dim).double()
        torch.testing.assert_close(model(images, moved), logits, rtol=0, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(fold(model)(images), logits, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("both_sums")
def test_a_volume_with_locality_and_prefix_in_linear_attention():
    model = solid(3, locality="gaussian", registers=2, key_gate=True, values="gating").eval()
    assert model(torch.randn(1, 2, 8, 6, 12)).shape == (1, 5)
    assert model.patch_features(torch.randn(1, 2, 8, 6, 12)).shape == (1, 24, 4, 2, 6)


def test_patches_are_those_of_their_places():
    """The first axis is the slowest, as in positions; within a patch the channel is."""
    model = solid(3)
    images = torch.arange(2 * 4 * 6 * 8.0).reshape(1, 2, 4, 6, 8)
    patches = patchify(images, model.patch)
    for n, (i, j, k) in enumerate(grid_positions((2, 2, 4)).long().tolist()):
        wanted = images[0, :, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3, 2 * k : 2 * k + 2]
        assert torch.equal(patches[0, n], wanted.flatten())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": [16, 24, 8]}, r"patch_size \[4, 8\] and image_size \[16, 24, 8\] differ in the number of axes"),
        ({"image_size": [16, 0]}, "patch_size and image_size must be positive, not"),
        ({"position_grid": [3]}, r"position_grid must hold 2 positive numbers of patches, not \[3\]"),
        ({"num_classes": -1}, "num_classes must be 0 or more, not -1"),
    ],
)
def test_what_is_no_shape(changes, message):
    with pytest.raises(ValueError, match=message):
        vit(**changes)
    with pytest.raises(ValueError, match=r"images must be \[B, 2, and 3 sizes\], not \[1, 2, 16, 24\]"):
        solid(3)(torch.zeros(1, 2, 16, 24))


@pytest.mark.parametrize("pool", ["mean", "cls", "attention", "map"])
def test_without_classes_the_pooled_features_are_left(pool):
    model, images = vit(pool=pool, num_classes=0).eval(), torch.randn(2, 2, 16, 24)
    features = model(images)
    assert features.shape == (2, 24)
    whole = vit(pool=pool).eval()
    assert whole.load_state_dict(model.state_dict(), strict=False).missing_keys == ["head.weight", "head.bias"]
    tokens = whole.forward_features(images)
    torch.testing.assert_close(whole.forward_head(tokens, pre_logits=True), features)
    torch.testing.assert_close(whole(images), whole.head(features))


def test_patch_features_are_in_their_places():
    model, images = vit(registers=2).eval(), torch.randn(2, 2, 12, 40)
    features, tokens = model.patch_features(images), model.forward_features(images)
    assert features.shape == (2, 24, 3, 5)
    assert torch.equal(features[:, :, 1, 4], tokens[:, 2 + 5 + 4])


def test_intermediate_layers_are_the_outputs_of_blocks():
    """With the last norm, as in DINO, or without; prefix tokens are left out, and the class token is beside them."""
    model, images = large(vit(depth=3, registers=2, pool="cls")).eval(), torch.randn(2, 2, 12, 40).double()
    outputs: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, out: outputs.append(out))
    (last,) = model.get_intermediate_layers(images)
    assert torch.equal(last, model.forward_features(images)[:, 3:])
    outputs.clear()
    pairs = model.get_intermediate_layers(images, [-2, 0], return_class_token=True)
    assert len(outputs) == 2  # the last block is not needed
    for (patches, token), out in zip(pairs, outputs, strict=True):
        assert torch.equal(torch.cat([token[:, None], patches], 1), model.norm(out)[:, [0, *range(3, 18)]])
    outputs.clear()
    maps = model.get_intermediate_layers(images, 2, reshape=True, norm=False)
    for found, out in zip(maps, outputs[1:], strict=True):
        assert found.shape == (2, 24, 3, 5)
        assert torch.equal(found[:, :, 1, 4], out[:, 3 + 5 + 4])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 3}, "n is a number of blocks from 1 to 2, or a list of their indices, not 3"),
        ({"n": 0}, "not 0"),
        ({"n": [0, 2]}, r"counted from 0 to 1, or from the end by -1 and on, not \[0, 2\]"),
        ({"n": []}, r"not \[\]"),
        ({"return_class_token": True}, "no class token: it was built with pool='mean', not 'cls'"),
    ],
)
def test_intermediate_layers_that_are_not_there(arguments, message):
    with pytest.raises(ValueError, match=message):
        vit(depth=2).get_intermediate_layers(torch.randn(1, 2, 16, 24), **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"locality": "gaussian", "values": "connection", "drop_path": 0.3},
        {"locality": "gaussian", "max_dense_tokens": 0},
    ],
    ids=str,
)
def test_blocks_computed_again_have_the_same_gradients(options):
    """Under learned rotations, which all blocks share, and with the same branches left out."""
    model, images = vit(encoding="cayley-string", **options).train(), torch.randn(4, 2, 16, 24)
    found = []
    for again in (False, True):
        model.set_grad_checkpointing(again)
        model.zero_grad()
        torch.manual_seed(3)
        model(images).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_blocks_computed_again_may_have_statistics_of_their_own():
    """A spectral norm writes to its buffers in each forward pass, and is no draw of features."""
    model = vit().train()
    for block in model.blocks:
        parametrizations.spectral_norm(block.mlp[0])
    model.set_grad_checkpointing()
    model(torch.randn(2, 2, 16, 24)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.blocks.parameters())


@pytest.mark.parametrize("feature_map", ["favor+", "arc-cosine"])
def test_features_redrawn_before_their_blocks_are_computed_again(feature_map):
    """Gradients would be those of another function; without blocks to compute again they are kept."""
    for again in (False, True):
        model = vit(feature_map=feature_map).train()
        model.set_grad_checkpointing(again)
        loss = model(torch.randn(2, 2, 16, 24)).square().sum()
        model.redraw(3)
        if again:
            with pytest.raises(RuntimeError, match="redraw after the backward pass"):
                loss.backward()
        else:
            loss.backward()


@pytest.mark.parametrize("encoding", ["absolute", "circulant-string", "pate-so2"])
@pytest.mark.parametrize("kind", [{"attention": "softmax", "log_n_scaling": True}, {"values": "connection"}], ids=str)
def test_a_model_of_another_size_with_the_grid_of_its_weights_is_the_same(encoding, kind):
    model = large(vit(encoding=encoding, positions="interpolate", **kind))
    other = large(vit(encoding=encoding, positions="interpolate", image_size=[32, 80], position_grid=[4, 3], **kind))
    other.load_state_dict(model.state_dict())
    images = torch.randn(2, 2, 32, 80).double()
    with torch.no_grad():
        assert torch.equal(other(images), model(images))
        if encoding != "absolute":  # the control, whose table is of another size
            other = large(vit(encoding=encoding, positions="interpolate", image_size=[32, 80], **kind))
            other.load_state_dict(model.state_dict())
            assert (other(images) - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("encoding", ["circulant-string", "liere", "sinusoidal"])
@pytest.mark.parametrize("pool", ["mean", "cls", "attention", "map"])
@pytest.mark.parametrize(
    "options",
    [
        {"registers": 1, "key_gate": True},
        {"feature_map": "arc-cosine", "locality": "gaussian", "locality_options": {"normalised": True}},
        {"feature_map": "arc-cosine", "locality": "gaussian", "max_dense_tokens": 0},
        {"attention": "softmax", "log_n_scaling": True, "qk_norm": True, "values": "connection"},
    ],
    ids=["favor+", "arc-cosine-locality", "arc-cosine-locality-over-the-grid", "softmax-log-n"],
)
def test_a_padded_image_in_a_batch_is_what_it_is_alone(options, pool, encoding):
    """Whatever its padding holds, logits and gradients; and the other image of the batch keeps all of its patches."""
    model = large(vit(encoding=encoding, pool=pool, **options))
    small, full = torch.randn(1, 2, 8, 16).double(), torch.randn(1, 2, 16, 24).double()
    padded = torch.full((1, 2, 16, 24), 7.0).double()
    padded[:, :, :8, :16] = small
    mask = torch.ones(2, 4, 3, dtype=torch.bool)
    mask[0, 2:], mask[0, :, 2:] = False, False
    if pool == "attention":
        model.config.centred = True  # by the patches that take part
    both = model(torch.cat([padded, full]), patch_mask=mask.flatten(1))
    torch.testing.assert_close(both, torch.cat([model(small), model(full)]), rtol=1e-6, atol=1e-9)
    gradients = [torch.autograd.grad(x.square().sum(), model.embed.weight)[0] for x in (both[:1], model(small))]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)
    model.set_grad_checkpointing()
    again = model(torch.cat([padded, full]), patch_mask=mask.flatten(1))
    torch.testing.assert_close(again, both)


@pytest.mark.parametrize(
    "options", [{}, {"values": "group-action"}, {"encoding": "sinusoidal", "locality": "gaussian"}]
)
def test_positions_are_centred_by_the_patches_that_take_part(options):
    """A mask moves no patch that it keeps, nor do the places of those that it leaves out."""
    model = large(vit(**{"encoding": "liere", "centred": True, **options}))
    images, mask = torch.randn(2, 2, 16, 24).double(), torch.ones(2, 12, dtype=torch.bool)
    positions = model.grid_positions((4, 3)).round().long()
    whole = model(images, positions)
    torch.testing.assert_close(model(images, positions + 5, mask), whole)
    mask[:, 7:] = False
    found, moved = model(images, positions, mask), positions.clone()
    moved[7:] += 3
    if "locality" not in options:  # which has a grid to be told of
        torch.testing.assert_close(model(images, moved, mask), found)
    assert (found - whole).abs().max() > 1e-4


def test_a_mask_that_is_none_of_the_patches():
    model, images = vit(registers=2), torch.randn(2, 2, 16, 24)
    for mask in (torch.ones(2, 12), torch.ones(12, dtype=torch.bool), torch.ones(2, 14, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"patch_mask must be boolean and of shape \[B, N\] = \[2, 12\]"):
            model(images, patch_mask=mask)
