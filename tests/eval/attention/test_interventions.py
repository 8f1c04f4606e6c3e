"""Models with one thing changed: what each intervention stands for, and that it leaves no trace."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from eval.attention import dense_attention
from eval.attention.interventions import interventions
from eval.cli import main
from eval.model_changes import changed
from performer_string import ViT, ViTConfig, grid_positions
from performer_string.feature_maps import FEATURE_MAPS, FeatureMap
from performer_string.layers.inspection import inspect_attention
from performer_string.models.vit.patches import blank_patches
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.large_weights import MODELS, model, sparse_images

MOVED = {f"positions moved by {n}" for n in (4, 8, 16, 32)}
OF_ALL = {"near keys", "patches shuffled", "blank patches masked"}


def titles_of(vit: ViT) -> set[str]:
    """Return the interventions of a model without those on the places of tokens."""
    return {name.split(",")[0] for name in interventions(vit)} - MOVED - OF_ALL


def trace(vit: ViT) -> tuple:
    """Return what an intervention might leave behind."""
    modules = list(vit.modules())
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in modules)
    return [id(m) for m in modules], hooks, [getattr(m, "order", None) for m in modules]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_interventions_change_a_model_and_leave_no_trace(kind, pool):
    vit, images = model(kind, pool=pool), sparse_images(9)
    before = trace(vit)
    with torch.no_grad():
        plain = vit(images)
        state = {name: value.clone() for name, value in vit.state_dict().items()}
        for name, change in interventions(vit).items():
            with changed(vit, change):
                assert vit(sparse_images(5)).isfinite().all()
                assert (vit(images) - plain).abs().max() > 1e-5, name
            with pytest.raises(ValueError, match="images must be"), changed(vit, change):
                vit(torch.zeros(1, 3, 60, 60))
            assert trace(vit) == before, name
            assert torch.equal(vit(images), plain), name
    assert all(torch.equal(value, state[name]) for name, value in vit.state_dict().items())


def test_interventions_of_each_kind_of_model(monkeypatch):
    groups = {kind: titles_of(model(kind)) for kind in MODELS}
    thin = {"keys thinned", "pooling thinned", "keys and pooling thinned"}
    drawn = {f"draw {i}" for i in range(5)}
    assert groups["softmax"] == {"log N temperature", *thin}
    assert groups["polynomial"] == {"softmax", "log N temperature", *thin}
    assert groups["performer-pytorch"] == {"softmax", "log N temperature", "pooling thinned", *drawn}
    assert groups["arc-cosine"] == {
        "softmax", "expected kernel", "8 times the features", "log N temperature", *drawn, *thin
    }  # fmt: skip
    learned = model("arc-cosine", feature_options={**MODELS["arc-cosine"]["feature_options"], "learned": True})
    groups["learned"] = titles_of(learned)
    assert groups["learned"] == {"softmax", "log N temperature", *thin}  # no draw has made it
    with monkeypatch.context() as patched:
        patched.setattr(
            FEATURE_MAPS["arc-cosine"], "log_kernel", FeatureMap.log_kernel
        )  # as of a map of one's own without
        bare = titles_of(model("arc-cosine"))
    assert bare == groups["arc-cosine"] - {"expected kernel"}
    square = model("polynomial", feature_options={})
    assert not {name for name in interventions(square) if "temperature" in name or "draw" in name}
    assert "log N temperature" not in interventions(model("softmax", log_n_scaling=True))
    assert titles_of(model("arc-cosine", pool="cls")) == groups["arc-cosine"] - {
        "pooling thinned", "keys and pooling thinned"
    }  # fmt: skip


def same_weights(vit: ViT, config: ViTConfig) -> ViT:
    other = ViT(config).eval()
    other.load_state_dict(vit.state_dict(), strict=False)
    return other


@torch.no_grad()
def test_interventions_equal_models_with_that_configuration():
    images, arc_cosine, soft = sparse_images(9), model("arc-cosine"), model("softmax")
    with changed(arc_cosine, interventions(arc_cosine)["softmax, all layers"]):
        logits = arc_cosine(images)
    torch.testing.assert_close(
        logits, same_weights(arc_cosine, replace(arc_cosine.config, attention="softmax"))(images)
    )
    with changed(soft, interventions(soft)["log N temperature"]):
        logits = soft(images)
    expected = same_weights(soft, replace(soft.config, log_n_scaling=True))(images)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    order = round(2 * math.log(82) / math.log(26))
    sharp = replace(arc_cosine.config, feature_options={"order": order, "num_features": 8})
    assert order == 3
    with changed(arc_cosine, interventions(arc_cosine)["log N temperature"]):
        torch.testing.assert_close(arc_cosine(images), same_weights(arc_cosine, sharp)(images))


@torch.no_grad()
def test_moved_positions():
    vit, images = model("arc-cosine"), sparse_images(5)
    with changed(vit, interventions(vit)["positions moved by 8"]):
        moved = vit(images)
    assert torch.equal(moved, vit(images, positions=grid_positions((5, 5)) + 8))
    assert not MOVED & interventions(model("softmax")).keys()
    assert not MOVED & interventions(model("arc-cosine", encoding="absolute")).keys()


@torch.no_grad()
def test_shuffled_patches():
    images = torch.arange(2 * 60 * 60, dtype=torch.float32).reshape(2, 1, 60, 60)
    vit, embedded = model("softmax"), []
    with changed(vit, interventions(vit)["patches shuffled"]):
        vit.embed.register_forward_pre_hook(lambda module, args: embedded.append(args[0]))
        vit(images)
    vit(images)
    patches, plain = (x.reshape(2, 25, -1).tolist() for x in embedded)
    for image in range(2):
        assert patches[image] != plain[image]
        assert sorted(patches[image]) == sorted(plain[image])
    assert [plain[0].index(p) for p in patches[0]] != [plain[1].index(p) for p in patches[1]]
    bag, images = model("softmax", encoding="none"), sparse_images(5)
    with changed(bag, interventions(bag)["patches shuffled"]):
        shuffled = bag(images)
    torch.testing.assert_close(shuffled, bag(images), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_draws_differ():
    vit, images = model("favor+"), sparse_images(5)
    outs = []
    for draw in range(5):
        with changed(vit, interventions(vit)[f"draw {draw}"]):
            outs.append(vit(images))
    assert all((a - b).abs().max() > 1e-4 for a, b in itertools.combinations(outs, 2))


@torch.no_grad()
def test_thinned_tokens_have_every_glyph():
    vit, images = model(), sparse_images(9)
    masks, tokens, pooled = [], [], []
    vit.norm.register_forward_hook(lambda module, args, out: tokens.append(out))  # before the intervention's own
    vit.head.register_forward_pre_hook(lambda module, args: pooled.append(args[0]))
    for name in ("keys and pooling thinned", "keys thinned, layer 1"):
        with changed(vit, interventions(vit)[name]):
            for backend in vit.backends():
                backend.register_forward_pre_hook(
                    lambda module, args, kwargs: masks.append(kwargs["layout"].mask), with_kwargs=True
                )
            vit(images)
    mask, second_layer, first_layer_alone, second_layer_alone = masks[0], masks[1], masks[2], masks[-1]
    assert torch.equal(second_layer, mask)
    assert first_layer_alone is None
    assert torch.equal(second_layer_alone, mask)
    assert mask[:, 0].all()  # the register
    assert mask[:, 1:].sum(-1).tolist() == [25, 25]
    assert (mask[:, 1:] | blank_patches(images, vit.patch)).all()
    assert blank_patches(images, vit.patch).sum(-1).tolist() == [75, 75]
    mean = torch.stack([x[1:][m[1:]].mean(0) for x, m in zip(tokens[0], mask, strict=True)])
    torch.testing.assert_close(pooled[0], mean, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_masked_blank_patches_are_no_keys_and_not_pooled():
    vit, images = model(), sparse_images(9)
    with changed(vit, interventions(vit, ["blank"])["blank patches masked"]):
        masked = vit(images)
    torch.testing.assert_close(masked, vit(images, patch_mask=~blank_patches(images, vit.patch)))
    for without in (model(mask_blank_patches=True), model("performer-pytorch")):
        assert not interventions(without, ["blank"])
    assert not interventions(model(mask_blank_patches=True), ["thinned"])


@torch.no_grad()
@pytest.mark.parametrize(("locality", "normalised"), [(None, False), ("gaussian", False), ("gaussian", True)])
@pytest.mark.parametrize("kind", ["softmax", "arc-cosine"])
def test_near_keys(kind, locality, normalised, monkeypatch):
    """A row of one layer, key by key."""
    monkeypatch.setattr(dense_attention, "QUERIES_AT_A_TIME", 30)  # of 82
    focused = {"locality": locality, "locality_options": {"normalised": normalised}} if locality else {}
    vit, images = model(kind, **focused, key_gate=True), sparse_images(9)
    probe, calls = inspect_attention(vit, images)[1], []
    with changed(vit, interventions(vit)["near keys, layer 1"]):
        backend = vit.backends()[1]
        backend.register_forward_hook(lambda module, args, out: calls.append((args[2], out)))
        vit(images)
    values, out = calls[0]
    positions, weights = grid_positions((9, 9)), probe.weights()
    lamb = probe.locality.matrix(probe.layout.positions, 1) if locality else torch.ones(2, 82, 82)
    for query in (0, 40, 80):
        near = [i for i in range(81) if (positions[i] - positions[query]).abs().max() <= 4]
        assert len(near) in (25, 81)
        keys = torch.tensor([0] + [1 + i for i in near])  # the register, and those
        row = weights[:, :, 1 + query, keys]
        row = row / row.sum(-1, keepdim=True) * lamb[:, 1 + query, keys]
        if normalised:
            row = row / row.sum(-1, keepdim=True)
        wanted = torch.einsum("bhk,bhkd->bhd", row, values[:, :, keys])
        torch.testing.assert_close(out[:, :, 1 + query], wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("scale", [None, 0.3])
def test_interventions_keep_the_temperature_of_qk_norm(scale):
    """Logits are tau cos(q, k) whatever scale a map has, so that the limit of FAVOR+ is softmax."""
    vit = model("favor+", qk_norm=True, feature_options={"num_features": 8, "scale": scale})
    changes, images = interventions(vit), sparse_images(5)
    plain = vit(images)
    with changed(vit, changes["near keys, all layers"]):  # where all keys are near
        torch.testing.assert_close(vit(images), plain, rtol=1e-4, atol=1e-5)
    with changed(vit, changes["softmax, all layers"]):
        wanted = vit(images)
    with changed(vit, changes["expected kernel, all layers"]):
        torch.testing.assert_close(vit(images), wanted, rtol=1e-4, atol=1e-5)
    assert (wanted - plain).abs().max() > 1e-3


@torch.no_grad()
def test_nothing_is_thinned_at_the_training_resolution():
    vit, images = model(), sparse_images(5)
    plain = vit(images)
    for name, change in interventions(vit, ["thinned", "temperature", "near"]).items():
        with changed(vit, change):
            torch.testing.assert_close(vit(images), plain, rtol=1e-4, atol=1e-5, msg=name)


def test_intervene_of_checkpoints(tmp_path, capsys):
    path = save(tmp_path / "one", replace(CONFIG, **MODELS["arc-cosine"]))
    arguments = ["--checkpoint", str(path), "--resolutions", "60", "84", "--images", "8"]
    main(["intervene", *arguments, "--groups", "softmax", "thinned"])
    rows = read(tmp_path / "one" / "results" / "intervene.csv")[1]
    names = ["as trained", "softmax, layer 0", "softmax, all layers"]
    names += ["keys thinned, layer 0", "keys thinned, all layers", "pooling thinned", "keys and pooling thinned"]
    assert [(row["intervention"], row["resolution"]) for row in rows] == [(n, r) for n in names for r in ("60", "84")]
    accuracies = {(row["intervention"], row["resolution"]): row["accuracy"] for row in rows}
    assert accuracies["keys and pooling thinned", "60"] == accuracies["as trained", "60"]  # nothing to thin
    assert "(+0.0)" in capsys.readouterr().out
    assert (tmp_path / "one" / "results" / "intervene.png").stat().st_size > 5000
    with pytest.raises(SystemExit):
        main(["intervene", *arguments, "--groups", "sofmax"])
    assert "invalid choice: 'sofmax'" in capsys.readouterr().err


def test_groups_that_have_nothing_to_change_are_named(tmp_path, capsys):
    path = str(save(tmp_path / "one", replace(CONFIG, attention="softmax")))
    arguments = ["--checkpoint", path, "--resolutions", "60", "--images", "2", "--groups"]
    main(["intervene", *arguments, "draws", "shuffled", "features"])
    assert "one: left out, as they do not apply to it: draws, features\n" in capsys.readouterr().err
    main(["intervene", *arguments, "shuffled"])
    assert "left out" not in capsys.readouterr().err
