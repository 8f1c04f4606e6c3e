"""Publishing a run: what is written, what others do with it, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image

from eval.cli import main as evaluate
from performer_string import ViT
from tests.helpers.checkpoints import CONFIG, read
from tests.helpers.publishing import finished_run, refused_publishing
from tests.helpers.runs import fails, fit
from tests.helpers.small_vit import vit
from train.checkpoint import load_trained
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher
from train.publish import is_licence, main
from train.runs.recorded import portable, recorded_imports, without_place


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path / "runs")


def test_a_published_model_is_evaluated_as_its_run(run, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "models" / "ants"
    options = "--resolutions 60 84 --images 16 --dataset arrows --licence mit"
    main([str(run), str(folder), *options.split()])
    assert "60 px: " in capsys.readouterr().out
    model, of_run = ViT.from_pretrained(folder), ViT.from_checkpoint(run)
    images = torch.rand(2, 1, 60, 60)
    assert torch.equal(model(images), of_run(images))
    assert model.classes == ("up", "left", "down", "right")
    trained, other = load_trained(folder), load_trained(run)
    place = {"root", "workers"}
    assert {k: v for k, v in trained.settings.items() if k not in place} == {
        k: v for k, v in other.settings.items() if k not in place
    }

    monkeypatch.chdir(tmp_path)
    figures = []
    for path in (folder, run):
        options = ["--checkpoint", str(path), "--resolutions", "60", "84", "--images", "16"]
        evaluate(["resolution", *options, "--out", str(tmp_path / "out")])
        _, rows = read(tmp_path / "out" / "resolution.csv")
        figures.append([float(row["accuracy"]) for row in rows])
        assert {row["model"] for row in rows} == {"ants"}
    metrics = json.loads((folder / "config.json").read_text())["metrics"]
    assert figures[0] == figures[1] == [row["accuracy"] for row in metrics if row["split"] == "test"]
    (validated,) = [row for row in metrics if row["split"] == "val"]
    assert (validated["accuracy"], validated["images"]) == (50.0, 32)
    assert {row["tokens"] for row in metrics if row["resolution"] == validated["resolution"]} == {validated["tokens"]}
    assert validated["low"] < 50 < validated["high"]


def test_nothing_of_this_machine_is_in_the_folder(run, tmp_path):
    folder = tmp_path / "models" / "ants"
    main([str(run), str(folder), "--skip_test", "--limits", "No wasps."])
    card, config = ((folder / name).read_text() for name in ("README.md", "config.json"))
    assert "python -m train fit --config train/configs/arrow.yaml\n" in card
    assert "No wasps." in card
    for text in (card, config):
        assert "/far" not in text
        assert str(tmp_path) not in text
    data = json.loads(config)["training"]["data"]["config"]
    assert not {"root", "workers", "download"} & data.keys()


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (
            "python -m train fit --config train/configs/arrow.yaml --run_dir=/x/y --seed_everything 3",
            "--seed_everything 3",
        ),
        ("python -m train fit --config arrow --data.root data --data.workers 0", "--data.root DIR"),
        ("python /home/me/mine.py fit --config ~/r.yaml", "python mine.py fit --config r.yaml"),
        ("python -m train fit --init_from=/r/parent/checkpoints/last.ckpt", "--init_from=parent"),
        ("python -m train fit --config /r/parent/config.yaml", "--config parent/config.yaml"),
        (r"python -m train fit --config 'C:\a\train\configs\mnist.yaml'", "--config train/configs/mnist.yaml"),
        ("python -m train fit --model.vit.encoding_options '{}'", "--model.vit.encoding_options '{}'"),
        ("python -m train fit --trainer.enable_progress_bar false --ema 0.9", "train fit --ema 0.9"),
    ],
)
def test_commands_are_without_places(typed, recorded):
    command = portable(typed)
    assert command.endswith(recorded)
    assert not {"--run_dir", "--data.workers"} & set(command.split())
    assert without_place("/nowhere/at/all.ckpt") == "all.ckpt"


def test_the_best_checkpoint(run, tmp_path, capsys):
    assert "there is no checkpoint" in refused_publishing([run, tmp_path / "best", "--best"], capsys)
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    own = {"monitor": "val/loss_60", "best_model_score": torch.tensor(0.412)}  # of the user's, which comes first
    best = {"monitor": "val/accuracy", "best_model_score": torch.tensor(0.75)}
    content["callbacks"] = {"ModelCheckpoint": own, "MovableCheckpoint": best}
    torch.save(content, run / "checkpoints" / "best.ckpt")
    main([str(run), str(tmp_path / "best"), "--best", "--skip_test"])
    (metric,) = json.loads((tmp_path / "best" / "config.json").read_text())["metrics"]
    assert (metric["split"], metric["resolution"], metric["accuracy"]) == ("val", "60", 75.0)


def test_bfloat16_is_half_as_large(run, tmp_path):
    for dtype in ("float32", "bfloat16"):
        main([str(run), str(tmp_path / dtype), "--dtype", dtype, "--resolutions", "60", "--images", "4"])
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("float32", "bfloat16")]
    assert sizes[1] < 0.75 * sizes[0]
    assert ViT.from_pretrained(tmp_path / "bfloat16").norm.weight.dtype == torch.bfloat16


def test_rounded_weights_are_half_as_large_and_computed_in_float32(run, tmp_path):
    main([str(run), str(tmp_path / "whole"), "--skip_test"])
    main([str(run), str(tmp_path / "rounded"), "--skip_test", "--round"])
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "rounded")]
    assert sizes[1] < 0.75 * sizes[0]
    whole, rounded = (ViT.from_pretrained(tmp_path / name) for name in ("whole", "rounded"))
    for name, value in whole.state_dict().items():
        if value.dtype == torch.float32:
            other = rounded.state_dict()[name]
            assert other.dtype == torch.float32
            assert torch.equal(other, value.bfloat16().float())
    assert (
        "- weights rounded to bfloat16 after validation, and computed in float32"
        in (tmp_path / "rounded" / "README.md").read_text()
    )


def test_nothing_of_the_user_is_replaced_unless_asked(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "ants"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    for name in (folder, "~/ants"):
        assert "holds README.md: choose another folder" in refused_publishing([run, name, "--skip_test"], capsys)
    assert [path.name for path in folder.iterdir()] == ["README.md"]
    main([str(run), str(folder), "--skip_test", "--overwrite"])
    assert "# ants" in (folder / "README.md").read_text()
    assert "is published already" in refused_publishing([folder, tmp_path / "again"], capsys)


def test_an_unfinished_run_is_said_to_be_one(run, tmp_path, capsys):
    (run / "metrics.json").unlink()
    (run / "history.jsonl").unlink()
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    content["global_step"] = 7
    torch.save(content, run / "checkpoints" / "last.ckpt")
    main([str(run), str(tmp_path / "ants"), "--skip_test", "--name", "fire-ants"])
    assert capsys.readouterr().err == "This run is not finished: step 7.\n"
    card = (tmp_path / "ants" / "README.md").read_text()
    assert "\n# fire-ants\n" in card
    assert "- This run is not finished: step 7.\n" in card
    assert "The command is not recorded." in card
    assert 'pip install -e ".[hub,images]"\n' in card
    assert "a model's name has letters" in refused_publishing(
        [run, tmp_path / "b", "--skip_test", "--name", "a/b"], capsys
    )


@pytest.mark.slow
def test_images_are_wherever_root_says(tmp_path, capsys):
    for split in ("train", "test"):
        for number, name in enumerate("abcd"):
            for i in range(3):
                path = tmp_path / "images" / split / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (60, 60), (60 * number, 9 * i, 0)).save(path)
    data = ImageData("folder", root=str(tmp_path / "images"), size=[60, 60], workers=0, batch_size=4)
    data.setup()
    run = finished_run(tmp_path / "runs", "photos", data, replace(CONFIG, in_channels=3))
    shutil.move(tmp_path / "images", tmp_path / "moved")
    assert "--skip_test" in refused_publishing([run, tmp_path / "photos"], capsys)
    main([str(run), str(tmp_path / "photos"), "--root", str(tmp_path / "moved")])
    model = ViT.from_pretrained(tmp_path / "photos")
    assert model.classes == ("a", "b", "c", "d")
    options = [
        "--checkpoint",
        str(tmp_path / "photos"),
        "--out",
        str(tmp_path / "out"),
        "--root",
        str(tmp_path / "moved"),
    ]
    evaluate(["resolution", *options, "--split", "val"])
    evaluate(["resolution", *options])
    with pytest.raises(SystemExit):
        evaluate(["resolution", *options[:4]])
    assert "--root DIR in an evaluation" in capsys.readouterr().err


def test_what_models_of_save_pretrained_do_not_know(tmp_path, capsys):
    student = vit()
    folder = vit().save_pretrained(tmp_path / "plain")
    with pytest.raises(SystemExit):
        evaluate(["resolution", "--checkpoint", str(folder)])
    assert "does not say what images the model was trained on" in capsys.readouterr().err
    with pytest.raises(ValueError, match="does not say how its images were normalised"):
        Teacher(DistillationConfig(str(folder)), student)


@pytest.mark.slow
def test_a_training_begins_with_a_published_model_and_learns_from_it(config, tmp_path, capsys):
    folder = tmp_path / "ants"
    fit(config, tmp_path / "parent")
    main([str(tmp_path / "parent"), str(folder), "--skip_test"])
    options = ["--init_from", str(folder), "--model.distillation.teacher", str(folder), "--trainer.max_steps", "1"]
    fit(config, tmp_path / "child", *options)
    assert (tmp_path / "child" / "metrics.json").is_file()
    main([str(tmp_path / "child"), str(tmp_path / "second"), "--skip_test"])
    taught = json.loads((tmp_path / "second" / "config.json").read_text())["training"]["distillation"]
    assert taught["teacher"] == "ants"
    load_trained(tmp_path / "second")
    weights = str(folder / "model.safetensors")
    said = fails(["fit", "--config", str(config), "--ckpt_path", weights, "--run_dir", str(tmp_path / "no")], capsys)
    assert "without the state of an optimiser: start a training run from it with --init_from" in said


@pytest.mark.parametrize(
    ("licence", "known"), [("mit", True), ("CC-BY-4.0", True), ("other", True), ("mitt", False), ("mine 2", False)]
)
def test_names_of_licences(licence, known):
    assert is_licence(licence) == known


def test_modules_that_a_run_imported(tmp_path):
    assert recorded_imports(tmp_path) == []
    for text, names in (("imports: mine\n", ["mine"]), ("imports: [a, b]\n", ["a", "b"]), ("imports: null\n", [])):
        (tmp_path / "config.yaml").write_text(text)
        assert recorded_imports(tmp_path) == names


def test_a_number_of_test_images_is_none_below_zero(capsys):
    """-3 left out the last three of them."""
    with pytest.raises(SystemExit):
        main(["run", "folder", "--images", "-3"])
    assert "--images: a number of 0 or more is needed here, not '-3'" in capsys.readouterr().err
