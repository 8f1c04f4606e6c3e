"""The command that makes a checkpoint of a model of timm, and what takes that checkpoint."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from eval.cli import main as evaluate
from performer_string import ViT, ViTConfig, from_timm
from tests.helpers.checkpoints import read
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher
from train.module import ImageClassifier
from train.pretrained import checkpoint, larger, main
from train.start import start_from

timm = pytest.importorskip("timm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a checkpoint of a small model of timm, `test_vit`."""
    out = tmp_path_factory.mktemp("pretrained")
    main(["test_vit", "--random", "--out", str(out)])
    return out


def test_the_command_writes_a_checkpoint_and_what_its_weights_decide(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["test_vit.ckpt", "test_vit.yaml"]
    model = ViT.from_checkpoint(folder / "test_vit.ckpt")
    assert model(torch.randn(1, 3, 160, 160)).shape == (1, 1000)
    text = (folder / "test_vit.yaml").read_text()
    assert "width: 64" in text
    assert "encoding: absolute" in text
    assert "attention" not in text


@pytest.mark.slow
def test_a_model_without_a_head(tmp_path, capsys):
    """As DINO's and DINOv2's are: its weights start a model with one."""
    name = "vit_tiny_patch16_224"
    vit = from_timm(timm.create_model(name, num_classes=0))
    file = tmp_path / "headless.ckpt"
    data = ImageData(source="imagenet", root="DIR", size=[224, 224])
    torch.save(checkpoint(vit, data), file)
    assert ViT.from_checkpoint(file)(torch.randn(1, 3, 224, 224)).shape == (1, 192)
    classifier = ImageClassifier(replace(vit.config, num_classes=5))
    start_from(file, classifier)
    assert torch.equal(classifier.vit.embed.weight, vit.embed.weight)
    with pytest.raises(SystemExit):
        evaluate(["resolution", "--checkpoint", str(file)])
    assert "needs num_classes of 2 or more, not 0" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "patch", "expected"), [(224, 16, ["288", "384"]), (518, 14, ["672", "882"])])
def test_sizes_to_validate_on_are_whole_patches(size, patch, expected):
    vit = ViT(ViTConfig(image_size=[size, size], patch_size=[patch, patch], variant="micro"))
    assert [larger(vit, 9 / 7), larger(vit, 12 / 7)] == expected


def test_weights_of_a_file(tmp_path):
    model, images = timm.create_model("test_vit").eval(), torch.randn(2, 3, 160, 160)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    main(["test_vit", "--weights", str(tmp_path / "own.pth"), "--out", str(tmp_path)])
    ours = ViT.from_checkpoint(tmp_path / "test_vit.ckpt")
    torch.testing.assert_close(ours(images), model(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("classes", [0, 3])
def test_weights_with_another_head(tmp_path, capsys, classes):
    model = timm.create_model("test_vit", num_classes=classes)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "own.pth")
    main(["test_vit", "--weights", str(tmp_path / "own.pth"), "--out", str(tmp_path)])
    assert ViT.from_checkpoint(tmp_path / "test_vit.ckpt").config.num_classes == classes
    printed = capsys.readouterr().out
    assert ("--data.source folder --data.val_fraction 0.1" in printed) == (classes == 3)
    assert (f"python -m eval knn {tmp_path}/test_vit.ckpt --folder DIR" in printed) == (classes == 0)
    source = torch.load(tmp_path / "test_vit.ckpt", weights_only=True)["ImageData"]["config"]["source"]
    assert source == ("folder" if classes else "imagenet")


def test_a_download_that_fails(tmp_path, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr("timm.create_model", fail)
    with pytest.raises(SystemExit):
        main(["test_vit", "--out", str(tmp_path)])
    assert "no network. Without a network, give a file of weights: --weights FILE." in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):  # before a download
        main(["test_vit", "--out", str(tmp_path / "file")])
    assert f"--out {tmp_path / 'file'}: {tmp_path / 'file'} is not a folder that can be" in capsys.readouterr().err


@pytest.mark.slow
def test_its_checkpoint_is_evaluated(tmp_path):
    """On ImageNet's validation images, without those to train on."""
    from PIL import Image

    Image.new("RGB", (160, 160), (60, 0, 0)).save(tmp_path / "0.png")
    for number in range(1000):
        (tmp_path / "val" / f"n{number:04}").mkdir(parents=True)
        (tmp_path / "val" / f"n{number:04}" / "0.png").hardlink_to(tmp_path / "0.png")
    main(["test_vit", "--random", "--out", str(tmp_path), "--root", str(tmp_path)])
    given = ["resolution", "--checkpoint", str(tmp_path / "test_vit.ckpt"), "--out", str(tmp_path / "out")]
    evaluate([*given, "--images", "3"])
    assert read(tmp_path / "out" / "resolution.csv")[1][0]["resolution"] == "160"


def test_its_checkpoint_is_fine_tuned(folder, caplog):
    """What differs from the model that the weights are of is said, since heads, for one, change no shape."""
    config = ViT.from_checkpoint(folder / "test_vit.ckpt").config
    wanted = replace(config, num_heads=4, attention="linear", feature_map="arc-cosine")
    classifier = ImageClassifier(wanted)
    with caplog.at_level("INFO"):
        start_from(folder / "test_vit.ckpt", classifier)
    assert "num_heads: 2 in the checkpoint, 4 asked for" in caplog.text
    source = ViT.from_checkpoint(folder / "test_vit.ckpt")
    assert torch.equal(classifier.vit.embed.weight, source.embed.weight)


def test_its_checkpoint_is_a_teacher(folder, tmp_path):
    """Of a model with linear attention; and one without a head of how to attend alone."""
    config = ViT.from_checkpoint(folder / "test_vit.ckpt").config
    headless = tmp_path / "headless.ckpt"
    data = ImageData(source="imagenet", root="DIR", size=[160, 160])
    torch.save(checkpoint(ViT(replace(config, num_classes=0)), data), headless)
    for file, weight, wanted in (
        (folder / "test_vit.ckpt", 0.5, {"teacher", "attention"}),
        (headless, 0.0, {"attention"}),
    ):
        student = ViT(replace(config, attention="linear", num_classes=1000 if weight else 5))
        teacher = Teacher(DistillationConfig(str(file), weight=weight, attention=1.0), student, data)
        _, terms = teacher.losses(student, torch.randn(2, 3, 160, 160), None)
        assert terms.keys() == wanted
        assert all(term.isfinite() for term in terms.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["test_vitt", "--random"], "no model 'test_vitt'. Did you mean 'test_vit'"),
        (["test_vit", "--weights", "nowhere.pth"], "no file nowhere.pth"),
        (["test_vit2", "--random"], "normalises what is pooled"),
        (["test_vit.none", "--random"], "no model 'test_vit.none'"),
    ],
)
def test_errors_of_the_command_are_one_message(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_timm(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SystemExit):
        main(["test_vit", "--out", str(tmp_path)])
    assert "pip install timm" in capsys.readouterr().err
