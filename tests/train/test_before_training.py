"""`--dry_run`, `--check_data`, and classes that one of the sets lacks: what is known before the first step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

from performer_string import ViT
from tests.helpers.runs import fails, fit
from tests.helpers.training import TINY
from train import cli
from train.command.dry_run import epochs_line, limited, validations_of
from train.data.image_checks import broken_images, check_test_classes
from train.data.memory import ImagesInMemory
from train.data.module import ImageData


@pytest.fixture
def photographs(tmp_path) -> Path:
    """A folder of images of two classes."""
    for split, count in (("train", 12), ("test", 3)):
        for name, colour in (("cat", 40), ("dog", 200)):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (30, 24), (colour, 5 * number, 0)).save(folder / f"{number}.png")
    return tmp_path / "images"


@pytest.fixture
def recipe(photographs, tmp_path) -> list[str]:
    """The arguments of a training on them."""
    vit = {**TINY["model"]["vit"], "in_channels": 3, "num_classes": 2, "image_size": 24}
    data = {"source": "folder", "root": str(photographs), "batch_size": 4, "workers": 0}
    content = {**TINY, "model": {"vit": vit}, "data": data}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run_dir", str(tmp_path / "run")]


def test_broken_images_with_path_and_reason(photographs):
    (photographs / "train" / "dog" / "3.png").write_bytes(b"no image")
    cut = photographs / "test" / "cat" / "1.png"
    cut.write_bytes(cut.read_bytes()[:60])
    data = ImageData(source="folder", root=str(photographs), size=[24, 24], workers=0)
    found = dict(broken_images(data))
    assert sorted(found) == sorted([str(photographs / "train" / "dog" / "3.png"), str(cut)])
    assert all(reason.strip() for reason in found.values())
    assert broken_images(ImageData(size=[60, 60])) == []


def test_a_model_of_one_channel_for_images_in_colour(recipe, capsys):
    output = fails([*recipe, "--model.vit.in_channels", "1"], capsys)
    assert "set --model.vit.in_channels 3, or make the images grey by --data.grey true" in output


@pytest.mark.slow
def test_the_model_has_the_channels_of_the_images(recipe, tmp_path):
    """Also when it is resumed, where the images are grey by the recipe of the run."""
    cli.main([*recipe, "--data.grey", "true", "--trainer.max_epochs", "1"])
    run = tmp_path / "run"
    assert "in_channels: 1" in (run / "config.yaml").read_text()
    assert ViT.from_checkpoint(run).config.in_channels == 1
    cli.main(["resume", str(run), "--trainer.max_epochs", "2"])


@pytest.mark.slow
def test_the_head_has_a_class_for_each_folder(recipe, tmp_path, capsys):
    output = fails([*recipe, "--model.vit.num_classes", "7"], capsys)
    assert "the data (folder) has num_classes=2, the model 7: set --model.vit.num_classes 2." in output
    path = Path(recipe[2])
    path.write_text(path.read_text().replace("num_classes: 2", "num_classes: 7"))
    cli.main([*recipe, "--trainer.max_epochs", "1"])
    run = tmp_path / "run"
    assert "num_classes: 2" in (run / "config.yaml").read_text()
    assert ViT.from_checkpoint(run).config.num_classes == 2
    cli.main(["resume", str(run), "--trainer.max_epochs", "2"])


@pytest.mark.parametrize("more", ["train", "test"])
def test_classes_of_one_set_only(photographs, recipe, more, capsys, tmp_path):
    (photographs / more / "horse").mkdir()
    Image.new("RGB", (30, 24)).save(photographs / more / "horse" / "0.png")
    # in the training images it is a third class for a model of two, which is not what is wrong
    assert f"those in {photographs / 'test'} have different classes, so" in (said := fails(recipe, capsys))
    assert "horse is in one of the two only" in said
    assert not (tmp_path / "run" / "history.jsonl").exists()
    (photographs / more / "horse").rename(tmp_path / "horse")
    data = ImageData(source="folder", root=str(photographs), size=[24, 24])
    data.setup("fit")
    check_test_classes(data)


@pytest.mark.slow
def test_check_data_of_a_training(recipe, photographs, tmp_path, capsys):
    (photographs / "train" / "dog" / "3.png").write_bytes(b"no image")
    with pytest.raises(SystemExit) as stop:
        cli.main([*recipe, "--check_data"])
    assert stop.value.code == 1
    shown = capsys.readouterr()
    assert f"{photographs / 'train' / 'dog' / '3.png'}: " in shown.out
    assert "one image cannot be read" in shown.err
    (photographs / "train" / "dog" / "3.png").unlink()
    cli.main([*recipe, "--check_data", "--trainer.max_epochs", "1"])
    assert "Every image can be read." in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.json").exists()
    assert "check_data: false" in (tmp_path / "run" / "config.yaml").read_text()


def test_images_that_an_epoch_leaves_out_are_counted(photographs):
    def line(epochs: float, **changes) -> str:
        data = ImageData(source="folder", root=str(photographs), size=[24, 24], workers=0, **changes)
        data.setup("fit")
        loader = data.train_dataloader()
        return epochs_line(epochs, len(loader), data, loader)

    left = "6 of 22 images are left out of each epoch, others each time: a smaller data.batch_size leaves out fewer"
    assert line(1, batch_size=16) == f"1 epoch of 1 batch of 16; {left}"
    assert line(1, batch_size=21).endswith("1 of 22 images is left out of each epoch, others each time")
    repeated = "an epoch has 8 of 22 images, 3 times each"
    assert line(1, batch_size=11, repeats=3) == f"1 epoch of 2 batches of 11; {repeated}"
    assert line(2.5, batch_size=11) == "2.5 epochs of 2 batches of 11"


@pytest.mark.slow
def test_dry_run_counts_the_steps_of_all_devices(recipe, capsys):
    """22 images are 2 steps of two batches of 4."""
    with pytest.raises(SystemExit):
        cli.main([*recipe[:-2], "--trainer.devices", "2", "--trainer.accelerator", "cpu", "--dry_run"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 epochs of 2 batches of 2 x 4; 6 of 22 images" in shown
    assert "step 8 images, 4 images x 2 processes; the learning rate is not scaled by their number" in shown
    assert re.search(r"a batch of 4 on one device, [\d,.]+ images a second", shown)
    assert re.search(r"memory [\d,]+ MiB at most in the process", shown)


ON_TWO = ["--trainer.devices", "2", "--trainer.accelerator", "cpu", "--trainer.strategy", "ddp"]


def test_dry_run_describes_once(recipe, capsys, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # which Lightning sets by what follows
    names = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "GROUP_RANK": "0"}
    sizes = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**names, **sizes}.items():  # of the second process of torchrun
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        cli.main([*recipe, *ON_TWO, "--dry_run"])
    assert not end.value.code
    assert not capsys.readouterr().out


def test_one_process_finds_a_rate_and_opens_images(recipe, capsys):
    message = fails([*recipe, *ON_TWO, "--trainer.accumulate_grad_batches", "3", "--find_lr"], capsys)
    assert "--trainer.devices 1 --trainer.accumulate_grad_batches 6" in message
    assert "--dry_run --trainer.devices 1" in fails([*recipe, *ON_TWO, "--check_data"], capsys)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3),
        ({"val_check_interval": 0.5}, 6),
        ({"val_check_interval": 4}, 7),
        ({"check_val_every_n_epoch": 2}, 2),
        ({"val_check_interval": 7, "check_val_every_n_epoch": None}, 5),
    ],
    ids=str,
)
def test_validations_of_three_epochs_of_ten_batches(options, count):
    trainer = Trainer(**options, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert validations_of(trainer, 30, 10) == count


def test_batches_under_a_limit():
    assert [limited(10, limit) for limit in (None, 1.0, 0.25, 0.01, 4, 20)] == [10, 10, 2, 1, 4, 10]


@pytest.mark.slow
def test_dry_run_creates_nothing(recipe, photographs, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(SystemExit) as stop:
        cli.main([*recipe[:-2], "--dry_run"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "22 to train on, 2 of the training set for validation, 6 to test",
        "classes, train cat 11, dog 11",
        "classes, validation cat 1, dog 1",
        "classes, test cat 3, dog 3",
        "GMACs an image of 24 px, 4 tokens",
        "3 epochs of 5 batches of 4; 2 of 22 images",
        "time about 0:00:0",
        "folder runs/",
    ):
        assert text in shown
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.slow
def test_dry_run_reads_images_into_memory_once(recipe, monkeypatch):
    """Or draws them, which takes minutes for a task of many."""
    titles, read = [], ImagesInMemory.read
    monkeypatch.setattr(ImagesInMemory, "read", lambda *args: titles.append(args[-1]) or read(*args))
    with pytest.raises(SystemExit):
        cli.run([*recipe, "--dry_run", "--data.in_memory", "true"])
    assert titles.count("training images") == 1


def test_dry_run_of_a_resume_leaves_the_run(config, tmp_path, capsys):
    run = tmp_path / "run"
    fit(config, run, "--trainer.max_epochs", "1")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        cli.main(["resume", str(run), "--trainer.max_epochs", "2", "--dry_run"])
    assert f"{run}, which goes on from {run}/checkpoints/last.ckpt" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as end:  # of a new training it says that the folder is taken, and writes nothing
        cli.main(["fit", "--config", str(config), "--run_dir", str(run), "--dry_run"])
    assert end.value.code == 0
    assert f"{run}, which holds a run already" in " ".join(capsys.readouterr().out.split())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert "are of fit and resume" in fails(["validate", "--config", str(run / "config.yaml"), "--dry_run"], capsys)


@pytest.mark.slow
def test_find_lr_suggests_and_writes_nothing(recipe, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        cli.main([*recipe, "--find_lr"])
    assert not end.value.code
    out = capsys.readouterr().out
    suggestion = re.search(r"Suggestion: --model\.optim\.lr (\S+)", out)
    assert suggestion is not None
    assert 1e-6 < float(suggestion[1]) < 1
    assert not (tmp_path / "run").exists()
