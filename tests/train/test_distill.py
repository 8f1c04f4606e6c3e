"""Learning from a teacher: the loss is its definition, what it reaches, and training with one is like any."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from performer_string import ViT, ViTConfig
from performer_string.models.vit.patches import patchify
from tests.helpers.checkpoints import save
from tests.helpers.runs import assert_same_weights, fails, fit, killed
from tests.helpers.training import last
from train import cli
from train.checkpoint import load_trained
from train.checkpoint_file import read_checkpoint
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher
from train.module import ImageClassifier

EXACT = ViTConfig(
    image_size=60,
    patch_size=12,
    in_channels=1,
    num_classes=4,
    width=16,
    depth=2,
    num_heads=2,
    attention="softmax",
    registers=1,
    encoding="circulant-string",
)
LINEAR = replace(
    EXACT, attention="linear", feature_map="arc-cosine", feature_options={"num_features": 8}, key_gate=True
)


@pytest.fixture
def run(tmp_path):
    return save(tmp_path / "teacher", EXACT).parents[1]


def student(config: ViTConfig = LINEAR) -> ViT:
    torch.manual_seed(5)
    return ViT(config).train()


def layers(vit: ViT, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return inputs and outputs of the attention of each layer."""
    layout = vit.layout(vit.grid(*images.shape[2:]))
    x = torch.cat([vit.prefix.expand(len(images), -1, -1), vit.embed(patchify(images, vit.patch))], dim=1)
    pairs = []
    for block, rotation in zip(vit.blocks, vit.rotations(layout), strict=True):
        tokens = block.norm1(x)
        out = block.attention(tokens, rotation, layout)
        pairs.append((tokens, out))
        x = x + out
        x = x + block.mlp(block.norm2(x))
    return pairs


@pytest.mark.parametrize("side", [60, 84])
def test_losses_and_gradients_match_definition(run, side):
    config = DistillationConfig(str(run), weight=0.3, temperature=2.5, attention=0.7)
    vit, images = student(), torch.rand(3, 1, side, side)
    for parameter in vit.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    logits, terms = Teacher(config, vit).losses(vit, images, None)
    sum(terms.values()).backward()
    result = {name: p.grad.clone() for name, p in vit.named_parameters()}
    vit.zero_grad()

    teacher = ViT.from_checkpoint(run / "checkpoints" / "last.ckpt")
    torch.testing.assert_close(logits, vit(images))
    with torch.no_grad():
        shares, exact = (teacher(images) / 2.5).softmax(-1), layers(teacher, images)
    custom = (vit(images) / 2.5).softmax(-1)
    kl = 2.5**2 * (shares * (shares / custom).log()).sum(-1).mean()
    errors = []
    for block, rotation, (tokens, target) in zip(
        vit.blocks, vit.rotations(vit.layout(vit.grid(side, side))), exact, strict=True
    ):
        out = block.attention(tokens, rotation)
        errors.append(((out - target) ** 2).sum() / (target**2).sum())
    torch.testing.assert_close(terms["teacher"], 0.3 * kl)
    torch.testing.assert_close(terms["attention"], 0.7 * (errors[0] + errors[1]) / 2)
    (0.3 * kl + 0.7 * (errors[0] + errors[1]) / 2).backward()
    for name, parameter in vit.named_parameters():
        torch.testing.assert_close(result[name], parameter.grad, msg=name)


def test_losses_vanish_for_same_model_only(run):
    """Of the teacher's weights: no error. Of other attention with them: one in the attention. Afresh: both."""
    config, images = DistillationConfig(str(run), weight=1, attention=1), torch.rand(2, 1, 60, 60)
    weights = ViT.from_checkpoint(run / "checkpoints" / "last.ckpt").state_dict()
    result = []
    for custom, start in ((EXACT, weights), (LINEAR, weights), (LINEAR, {})):
        vit = student(custom)
        vit.load_state_dict(start, strict=False)
        with torch.no_grad():
            result.append({k: float(v) for k, v in Teacher(config, vit).losses(vit, images, None)[1].items()})
    assert max(map(abs, result[0].values())) < 1e-9
    assert 1e-6 < result[1]["attention"] < result[2]["attention"]
    assert result[1]["teacher"] < result[2]["teacher"]


def test_gradients_of_each_term(run):
    vit, images = student(), torch.rand(2, 1, 60, 60)
    _, terms = Teacher(DistillationConfig(str(run), attention=1), vit).losses(vit, images, None)
    for term, only in (("attention", True), ("teacher", False)):
        vit.zero_grad(set_to_none=True)
        terms[term].backward(retain_graph=True)
        reached = {name for name, p in vit.named_parameters() if p.grad is not None and p.grad.any()}
        inside = {n for n, _ in vit.named_parameters() if ".attention." in n or n.startswith("encoding.")}
        assert reached == (inside if only else {n for n, _ in vit.named_parameters()})


def test_images_are_renormalised_for_teacher(tmp_path):
    data = ImageData("arrow", mean=[0.3], std=[0.4], val_size=32, size=[60, 60], workers=0)
    path, custom = save(tmp_path / "teacher", EXACT, data), ImageData("arrow", mean=[0.1], std=[0.5], size=[60, 60])
    teacher, pixels = Teacher(DistillationConfig(str(path)), student(), custom), torch.randint(0, 256, (2, 1, 60, 60))
    torch.testing.assert_close(teacher.images(custom.normalise(pixels)), data.normalise(pixels))
    alike = custom.normalise(pixels)
    assert Teacher(DistillationConfig(str(path)), student(), data).images(alike) is alike


@pytest.mark.slow
def test_resume_with_teacher_continues_bit_for_bit(run, config, tmp_path, capsys):
    vit = ["--model.vit.attention", "softmax", "--model.vit.registers", "1", "--model.optim.redraw_every", "0"]
    vit += ["--model.vit.feature_options", "{}"]
    short = ["--ema", "0", "--trainer.max_epochs", "2"]
    arguments = [*vit, "--model.distillation.teacher", str(run), "--model.distillation.attention", "2.0", *short]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    fit(config, whole, *arguments)
    with killed("on_train_batch_end", 17):
        fit(config, resumed, *arguments)
    other, moved = save(tmp_path / "other", EXACT), tmp_path / "moved"
    content = torch.load(other)
    content["state_dict"]["vit.head.bias"] += 1
    torch.save(content, other)
    message = fails(["resume", str(resumed), "--model.distillation.teacher", str(other)], capsys)
    assert f"{other} has other weights than the teacher that this run was trained with" in message
    run.rename(moved)
    cli.run(["resume", str(resumed), "--model.distillation.teacher", str(moved)])
    assert_same_weights(whole, resumed)
    one = read_checkpoint(last(whole))
    assert one["state_dict"].keys() == ImageClassifier(load_trained(whole).classifier.vit.config).state_dict().keys()
    assert one["hyper_parameters"]["distillation"]["attention"] == 2
    fit(config, tmp_path / "alone", *vit, *short)
    alone = read_checkpoint(last(tmp_path / "alone"))["state_dict"]
    assert not torch.equal(alone["vit.head.weight"], one["state_dict"]["vit.head.weight"])


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, ["--model.distillation.attention=1"], "needs a trained model to learn from: distillation.teacher"),
        ({}, ["--model.distillation.teacher=nowhere"], "there is no checkpoint nowhere"),
        ({}, ["--model.distillation.weight=2"], "distillation.weight must be 0 or more and at most 1, not 2.0"),
        ({}, ["--model.distillation.temperature=0"], "distillation.temperature must be above 0"),
        ({}, ["TEACHER", "--model.distillation.weight=0"], "a teacher of weight 0 and attention 0 teaches nothing"),
        ({"num_classes": 5}, ["TEACHER"], "num_classes=5 and not 4: a model cannot learn this from it"),
        ({"depth": 3, "width": 24}, ["TEACHER", "--model.distillation.attention=1"], "depth=3 and not 2; width=24"),
        ({"registers": 0}, ["TEACHER", "--model.distillation.attention=1"], "and one with pool=cls)=0 and not 1"),
        ({}, ["TEACHER", "--model.distillation.attention=1", "--compile=eager"], "which --compile hides"),
    ],
    ids=str,
)
def test_unsuitable_teachers(config, tmp_path, capsys, changes, arguments, message):
    path = save(tmp_path / "teacher", ViTConfig(**{**asdict(EXACT), "variant": None, **changes}))
    more = [f"--model.distillation.teacher={path}" if each == "TEACHER" else each for each in arguments]
    new = tmp_path / "run"
    start = ["fit", "--config", str(config), "--run_dir", str(new), "--model.vit.registers", "1"]
    assert message in fails([*start, *more], capsys)


@pytest.mark.parametrize(("custom", "fits"), [("abcd", True), ("abce", False)])
def test_teacher_with_other_classes(tmp_path, custom, fits):
    """As many, but a number means another one."""

    def data(names: str) -> ImageData:
        for name in names:
            folder = tmp_path / names / "train" / name
            folder.mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (60, 60)).save(folder / f"{i}.png")
        made = ImageData("folder", root=str(tmp_path / names), size=[60, 60], batch_size=2)
        made.setup()
        return made

    colours = replace(EXACT, in_channels=3)
    path = save(tmp_path / "teacher", colours, data("abcd"))
    images = data(custom) if custom != "abcd" else load_trained(path).data
    config = DistillationConfig(str(path))
    if fits:
        Teacher(config, student(colours), images)
        return
    with pytest.raises(ValueError, match=r"the training images and the teacher .* d, e are in one"):
        Teacher(config, student(colours), images)
    Teacher(replace(config, weight=0.0, attention=1.0), student(colours), images)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["0", "1"])
def test_teacher_with_other_layers(run, config, tmp_path, attention):
    """Other depth and width, or, with the transfer, another encoding, attention and image size."""
    arguments = ["--model.distillation.teacher", str(run), "--model.distillation.attention", attention]
    arguments += ["--trainer.max_epochs", "1", "--model.vit.registers", "1"]
    arguments += ["--model.vit.depth", "1"] if attention == "0" else ["--model.vit.encoding", "rope-mixed"]
    arguments += ["--trainer.precision", "bf16-true" if attention == "1" else "bf16-mixed"]
    arguments += ["--trainer.logger=lightning.pytorch.loggers.CSVLogger", f"--trainer.logger.save_dir={tmp_path}"]
    fit(config, tmp_path / "run", *arguments, *([] if attention == "0" else ["--model.vit.image_size", "72"]))
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    for term in ("", "_of_teacher", *(["_of_attention"] if attention == "1" else [])):
        values = [float(row[f"train/loss{term}"]) for row in rows if row[f"train/loss{term}"]]
        assert len(values) == 10, term
        assert all(0 < value < 100 for value in values), (term, values)
    assert ("train/loss_of_attention" in rows[0]) == (attention == "1")


def test_weight_of_labels(run):
    """(1 - weight) CE of the labels beside the terms, and CE alone without a teacher."""
    config = DistillationConfig(str(run), weight=0.25)
    module, batch = ImageClassifier(LINEAR, distillation=config), (torch.rand(4, 1, 60, 60), torch.arange(4))
    logged: dict[str, Tensor] = {}
    module.log = lambda name, value, **others: logged.update({name: value})
    labels = F.cross_entropy(module.vit(batch[0]), batch[1])
    torch.testing.assert_close(module.training_step(batch, 0), labels)
    module.teacher = Teacher(config, module.vit)
    loss = module.training_step(batch, 0)
    teacher = module.teacher.losses(module.vit, batch[0], None)[1]["teacher"]
    torch.testing.assert_close(loss, 0.75 * labels + teacher)
    torch.testing.assert_close(logged["train/loss"], loss)
    torch.testing.assert_close(logged["train/loss_of_teacher"], teacher)
