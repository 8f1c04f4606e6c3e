"""Which weights are trained, at which rate and with which decay."""

from __future__ import annotations

import pytest
import torch

from performer_string import ViT, ViTConfig
from tests.helpers.runs import assert_same_weights, fails, fit, killed
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.optim import OptimConfig
from train.parameter_groups import encoding_penalty, freeze_others, parameter_groups

VIT = {"image_size": 60, "patch_size": 12, "in_channels": 1, "num_classes": 4, "width": 16, "depth": 2, "num_heads": 2}


def test_generators_have_a_rate_a_decay_and_a_penalty_of_their_own():
    model = ViT(ViTConfig(**VIT))
    config = OptimConfig(lr=1e-3, encoding_lr=1e-4, encoding_weight_decay=1e-5)
    decayed, free, encoding = parameter_groups(model, config)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in encoding["params"]} == {"encoding.coefficients"}
    assert (encoding["lr"], encoding["weight_decay"]) == (1e-4, 1e-5)
    assert len(decayed["params"]) + len(free["params"]) + 1 == len(names)
    (gradient,) = torch.autograd.grad(encoding_penalty(model, 0.25), model.encoding.coefficients)
    torch.testing.assert_close(gradient, 0.5 * model.encoding.coefficients.detach())
    assert encoding_penalty(ViT(ViTConfig(**VIT, encoding="none")), 0.25) == 0


@pytest.mark.parametrize("changes", [{"encoding_lr": 1e-4}, {"encoding_weight_decay": 1e-5}], ids=str)
def test_a_rate_or_a_decay_alone_makes_a_group_of_the_encoding(changes):
    """What is not given is that of the others; an encoding without parameters has no group."""
    groups = parameter_groups(ViT(ViTConfig(**VIT)), OptimConfig(lr=1e-3, **changes))
    assert [group["name"] for group in groups] == ["decayed", "undecayed", "encoding"]
    given = {"encoding_lr": 1e-3, "encoding_weight_decay": 0.0, **changes}
    assert (groups[2]["lr"], groups[2]["weight_decay"]) == tuple(given.values())
    groups = parameter_groups(ViT(ViTConfig(**VIT, encoding="none")), OptimConfig(**changes))
    assert [group["name"] for group in groups] == ["decayed", "undecayed"]


@pytest.mark.parametrize("encoding", ["absolute", "cayley-string", "circulant-string", "rope-mixed"])
def test_only_weights_of_linear_layers_decay(encoding):
    model = ViT(ViTConfig(**{**VIT, "encoding": encoding, "registers": 1, "qk_norm": True}))
    decayed, free = parameter_groups(model, OptimConfig(weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].split(".")[-1] for p in decayed["params"]} == {"weight"}
    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} == {"embed", "qkv", "out", "0", "2", "head"}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert any(names[id(p)].startswith("encoding.") for p in free["params"])


def test_all_parameters_decay_where_that_is_wanted():
    model = ViT(ViTConfig(**{**VIT, "encoding": "absolute", "registers": 1}))
    decayed, free = parameter_groups(model, OptimConfig(weight_decay=0.1, decay_all=True))
    assert len(decayed["params"]) == len(list(model.parameters()))
    assert not free["params"]
    torch.optim.AdamW(parameter_groups(model, OptimConfig(decay_all=True)))  # which takes an empty group


@pytest.mark.parametrize("encoding", ["absolute", "rope-mixed", "circulant-string", "none"])
@pytest.mark.parametrize("parts", [[], ["head", "norm", "blocks.1"], ["blocks.0.attention.qkv.weight"]], ids=str)
@pytest.mark.parametrize("encoding_lr", [None, 1e-4])
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_each_trained_weight_is_in_one_group(encoding, parts, layer_decay, encoding_lr):
    model = ViT(ViTConfig(**VIT, encoding=encoding, registers=1))
    freeze_others(model, parts)
    config = OptimConfig(layer_decay=layer_decay, encoding_lr=encoding_lr)
    grouped = [id(p) for group in parameter_groups(model, config) for p in group["params"]]
    trained = {name for name, p in model.named_parameters() if id(p) in grouped}
    assert len(grouped) == len(trained)
    assert trained == {
        name
        for name, _ in model.named_parameters()
        if not parts or any(f"{name}.".startswith(f"{part}.") for part in parts)
    }


@pytest.mark.parametrize(
    "changes",
    [{"encoding": "absolute"}, {"encoding": "rope-mixed", "absolute_table": "linear"}, {"pool": "cls"}],
    ids=str,
)
def test_layer_decay_is_that_of_timm(changes):
    optimizers = pytest.importorskip("timm.optim")
    model = ViT(ViTConfig(**{**VIT, "depth": 3, "registers": 1, **changes}))
    matcher = pytest.importorskip("performer_string.timm.model").TimmViT.group_matcher
    model.group_matcher = lambda coarse=False: matcher(model, coarse)
    theirs = optimizers.param_groups_layer_decay(model, 0.1, model.no_weight_decay(), layer_decay=0.5)
    expected = {id(p): (g["lr_scale"], g["weight_decay"]) for g in theirs for p in g["params"]}
    groups = parameter_groups(model, OptimConfig(lr=0.25, weight_decay=0.1, layer_decay=0.5))
    assert {id(p): (g.get("lr", 0.25) / 0.25, g["weight_decay"]) for g in groups for p in g["params"]} == expected
    assert "lr" not in groups[0]  # the full rate, which is logged as that of the training


@pytest.mark.slow
def test_only_parts_are_trained(config, tmp_path):
    """And a resumed run goes on so: its optimiser has the states of these weights alone."""
    options = ("--model.optim.train_only", "[head, blocks.1]", "--model.optim.layer_decay", "0.5")
    fit(config, tmp_path / "start", "--trainer.max_steps", "1", "--model.optim.lr", "1e-30", *options)
    fit(config, tmp_path / "run", *options)
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert [name for name in header if "learning_rate" in name] == [
        "train/learning_rate",
        "train/learning_rate_1_below_the_head",
    ]
    first, then = (read_checkpoint(last(tmp_path / run))["current_model_state"] for run in ("start", "run"))
    changed = {name for name in first if not torch.equal(first[name], then[name])}
    trained = {name for name in changed if "projection" not in name}
    assert trained
    assert all(name.startswith(("vit.head.", "vit.blocks.1.")) for name in trained)
    with killed("on_train_batch_start", 9):
        fit(config, tmp_path / "stopped", *options)
    cli.run(["resume", str(tmp_path / "stopped")])
    assert_same_weights(tmp_path / "run", tmp_path / "stopped")


@pytest.mark.slow
def test_gradient_checkpoints_change_no_weight(config, whole, tmp_path):
    module = fit(config, tmp_path / "run", "--model.optim.grad_checkpointing", "true").model
    assert module.vit.grad_checkpointing
    assert_same_weights(whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "parts"),
    [
        ("train_only", "[heads]", ["no parameter of the model is in 'heads'", "blocks, embed, encoding, head, norm"]),
        ("train_only", "[blocks.2]", ["'blocks.2'"]),
        ("layer_decay", "0", ["layer_decay must be above 0 and at most 1"]),
        ("layer_decay", "1.5", ["not 1.5"]),
    ],
)
def test_errors(config, tmp_path, capsys, option, value, parts):
    message = fails(
        ["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), f"--model.optim.{option}", value], capsys
    )
    assert all(part in message for part in parts)
