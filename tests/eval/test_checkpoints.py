"""The models and images of an evaluation: which go into one table, and how many images they get right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from eval.cli import main, parse_arguments
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.tiny_images import write_folder
from train.checkpoint import load_trained
from train.data.arrow import ArrowTask
from train.data.generated import GeneratedDataset
from train.data.module import ImageData


def arrows(seed: int) -> ImageData:
    return ImageData("arrow", val_size=8, size=[60, 60], workers=0, batch_size=8, seed=seed)


def refusal(arguments, capsys) -> str:
    """Return what the command line says when it ends with an error."""
    with pytest.raises(SystemExit):
        main(["resolution", *arguments])
    return capsys.readouterr().err


@pytest.mark.parametrize("split", ["test", "val"])
def test_accuracy_is_that_of_a_plain_loop(split, tmp_path):
    path = save(tmp_path / "one")
    trained = load_trained(path)
    main(["resolution", "--checkpoint", str(path), "--resolutions", "84", "--out", str(tmp_path), "--split", split])
    data = GeneratedDataset(ArrowTask(), 84, 32, split)
    with torch.no_grad():
        right = sum(int(trained.classifier(x[None] / 255).argmax()) == y for x, y in data)
    assert float(read(tmp_path / "resolution.csv")[1][0]["accuracy"]) == pytest.approx(100 * right / 32, abs=0.01)


def test_seeds_that_were_trained_otherwise(tmp_path, capsys):
    """In one folder they would be seeds of one model by their names, and their mean would be nobody's."""
    first = str(save(tmp_path / "one" / "m-seed0"))
    deeper = str(save(tmp_path / "one" / "m-seed1", replace(CONFIG, depth=2, seed=1)))
    said = refusal(["--checkpoint", first, deeper, "--resolutions", "60"], capsys)
    assert "m-seed1 and m-seed0 would pass for seeds of one model, but differ in depth" in said
    longer = save(tmp_path / "one" / "m-seed2", replace(CONFIG, seed=1))
    torch.save({**torch.load(longer, weights_only=True), "global_step": 7}, longer)
    assert "but differ in steps" in refusal(["--checkpoint", first, str(longer), "--resolutions", "60"], capsys)
    second = str(save(tmp_path / "four" / "m-seed1", replace(CONFIG, seed=1)))
    main(["resolution", "--checkpoint", first, second, "--resolutions", "60", "--images", "4"])
    assert "m, mean of 2 seeds" in capsys.readouterr().out


def test_rectangular_training_resolution(tmp_path, capsys):
    path = str(save(tmp_path / "one", replace(CONFIG, image_size=[60, 84])))
    main(["resolution", "--checkpoint", path, "--resolutions", "60", "--images", "4"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["trained at"] == "60x84"
    said = refusal(["--checkpoint", path, "--resolutions", "60x84"], capsys)
    assert "arrow images are square, not 60 x 84" in said


def test_resolution_named_twice_is_no_second_seed(tmp_path, capsys):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "60", "--images", "4"])
    assert "seeds" not in capsys.readouterr().out
    assert len(read(tmp_path / "one" / "results" / "resolution.csv")[1]) == 1


def test_models_of_other_images(tmp_path, capsys):
    """They would stand beside one majority baseline."""
    one, two, few = (str(save(tmp_path / name)) for name in ("one", "two", "few"))
    for path, name, value in ((two, "arrow", {"distance": "ray", "cell": 12}), (few, "val_size", 16)):
        content = torch.load(path, weights_only=True)
        config = content["ImageData"]["config"]
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
        torch.save(content, path)
    for path, message in ((two, "distance: adjacent and ray"), (few, "images: 32 and 16")):
        said = refusal(["--checkpoint", one, path, "--resolutions", "60"], capsys)
        assert f"would be tested on different images ({message})" in said
    main(["resolution", "--checkpoint", one, few, "--resolutions", "60", "--images", "16"])
    main(["resolution", "--checkpoint", one, "--resolutions", "60", "--images", "50"])
    assert {row["images"] for row in read(tmp_path / "one" / "results" / "resolution.csv")[1]} == {"50"}  # drawn


def test_other_training_seeds_have_the_same_test_images(tmp_path, capsys):
    paths = [str(save(tmp_path / f"m{seed}", data=arrows(seed))) for seed in (0, 1)]
    options = ["--resolutions", "60", "--images", "4"]
    main(["resolution", *paths, *options])
    assert "would be tested on different images (seed: 0 and 1)" in refusal(
        [*paths, *options, "--split", "train"], capsys
    )


def test_two_folders_have_other_test_images(tmp_path, capsys):
    paths = []
    for name in ("a", "b"):
        root = tmp_path / f"images-{name}"
        write_folder(root, 24, 2, classes=2)
        data = ImageData("folder", str(root), size=[24, 24], workers=0, mean=[0.5] * 3, std=[0.2] * 3)
        data.setup()
        config = replace(CONFIG, image_size=24, in_channels=3, num_classes=2)
        paths.append(str(save(tmp_path / name, config, data)))
    said = refusal([*paths, "--resolutions", "24"], capsys)
    assert f"would be tested on different images (root: {tmp_path}/images-a and {tmp_path}/images-b)" in said


def test_runs_with_and_without_the_name_of_the_option(tmp_path, capsys):
    """In any place, where no option before them takes them for its own."""
    one, two = (str(save(tmp_path / name)) for name in ("one", "two"))
    for arguments in (["resolution", one, two, "--split", "val"], ["ablation", "--split", "val", one, two]):
        assert parse_arguments(arguments).checkpoint == [Path(one), Path(two)]
    for arguments in ([one, "--checkpoint", two, one], ["--checkpoint", one, "--split", "val", two]):
        assert parse_arguments(["resolution", *arguments]).checkpoint == [Path(one), Path(two)]
    assert not parse_arguments(["invariance"]).checkpoint  # which has something to do without a model
    assert "the following arguments are required: RUN" in refusal(["--resolutions", "60"], capsys)


def test_what_is_no_run_is_skipped(tmp_path, capsys):
    """The folder of a sweep has its table and its results beside the runs."""
    save(tmp_path / "one")
    (tmp_path / "summary.csv").write_text("run\n")
    (tmp_path / "results").mkdir()
    paths = sorted(map(str, tmp_path.iterdir()))
    main(["resolution", "--checkpoint", *paths, "--resolutions", "60", "--images", "4", "--out", str(tmp_path / "out")])
    assert [row["model"] for row in read(tmp_path / "out" / "resolution.csv")[1]] == ["one"]
    skipped = f"Skipped, because they have no checkpoint: {tmp_path / 'results'}, {tmp_path / 'summary.csv'}"
    assert skipped in capsys.readouterr().err
    said = refusal(["--checkpoint", str(tmp_path / "one"), str(tmp_path / "two"), "--resolutions", "60"], capsys)
    assert f"there is no checkpoint {tmp_path / 'two'}" in said  # a misspelt path is no other file


def test_split_is_in_table_and_file(tmp_path, capsys):
    arguments = ["--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--images", "4"]
    for split in ("test", "val"):
        main(["resolution", *arguments, "--split", split, "--out", str(tmp_path / split)])
        assert read(tmp_path / split / "resolution.csv")[1][0]["split"] == split
        assert f"| accuracy in % ({split}) " in capsys.readouterr().out


def test_run_is_named_from_within_its_folder(tmp_path, monkeypatch, capsys):
    path = save(tmp_path / "one")
    monkeypatch.chdir(tmp_path / "one")
    for checkpoint in (".", str(path.relative_to(tmp_path / "one"))):
        options = ["--resolutions", "60", "--images", "4", "--out", str(tmp_path / "out")]
        main(["resolution", "--checkpoint", checkpoint, *options])
        assert read(tmp_path / "out" / "resolution.csv")[1][0]["model"] == "one"
    said = refusal(["--checkpoint", ".", "--resolutions", "61"], capsys)
    assert "error: one: an image of 61 x 61 pixels is not divisible" in said


def test_positions_can_be_interpolated(tmp_path):
    path = save(tmp_path / "one", replace(CONFIG, encoding="rope"))
    model = load_trained(path, positions="interpolate").classifier.vit
    assert model.grid_positions((10, 10)).max() < 5
    main(["resolution", "--checkpoint", str(path), "--resolutions", "120", "--positions", "interpolate"])


def test_folder_of_runs_is_not_a_run(tmp_path, capsys):
    save(tmp_path / "runs" / "one")
    said = refusal(["--checkpoint", str(tmp_path / "runs")], capsys)
    assert f"It is a folder of runs: give {tmp_path / 'runs'}/*/checkpoints/last.ckpt." in said


def test_misspelt_checkpoint(tmp_path, capsys):
    save(tmp_path / "runs" / "imagenette")
    for wrong in ("runs/imagenete", "rums/imagenette", "runs/imagenete/checkpoints/last.ckpt"):
        near = tmp_path / ("runs" if wrong.startswith("rums") else "runs/imagenette")
        assert f"Did you mean {near}?" in refusal(["--checkpoint", str(tmp_path / wrong)], capsys)


def test_models_of_other_classes(tmp_path, capsys):
    few, many = (save(tmp_path / name, replace(CONFIG, num_classes=n)) for name, n in (("few", 3), ("many", 10)))
    said = refusal(["--checkpoint", str(few), str(many)], capsys)
    assert "few has 3 classes, and the images under " in said


def test_images_that_are_drawn_have_no_place(tmp_path, capsys):
    said = refusal(["--checkpoint", str(save(tmp_path / "one")), "--root", "own", "--resolutions", "60"], capsys)
    assert "error: --root own: the images of one are drawn, by the task arrow. Leave --root out" in said


def test_task_with_other_options(tmp_path, capsys):
    """Images are drawn by the options of the command line, and results of others are not taken from the cache."""
    path = save(tmp_path / "one")
    trained = load_trained(path)
    plain = ["compare", "--checkpoint", str(path), "--resolutions", "84", "--images", "64", "--out", str(tmp_path)]
    for options, task in (([], ArrowTask()), (["--task", "ink=90", "paper=200"], ArrowTask(ink=90, paper=200))):
        main([*plain, *options])
        data = GeneratedDataset(task, 84, 64, "test")
        with torch.no_grad():
            loss = sum(float(F.cross_entropy(trained.classifier(x[None] / 255), torch.tensor([y]))) for x, y in data)
        comments, rows = read(tmp_path / "compare.csv")
        assert float(rows[0]["loss"]) == pytest.approx(loss / 64, abs=1e-4)
        assert " ".join(options) in comments[0]


def test_options_that_a_task_lacks(tmp_path, capsys):
    path = save(tmp_path / "one")
    assert "Did you mean 'paper'?" in refusal([str(path), "--task", "papr=0.6"], capsys)
    assert "NAME=VALUE" in refusal([str(path), "--task", "paper"], capsys)
    assert "not 'x'" in refusal([str(path), "--task", "paper=x"], capsys)
    images = ImageData("folder", root=str(tmp_path), size=[60, 60])
    folder = save(tmp_path / "photographs", data=images)
    assert "only a generated task" in refusal([str(folder), "--task", "paper=0.6"], capsys)


def test_missing_checkpoint(tmp_path, capsys):
    (tmp_path / "no").mkdir()
    for path in ("no.ckpt", "no"):
        assert "there is no checkpoint" in refusal(["--checkpoint", str(tmp_path / path)], capsys)


def test_resolutions_by_default_are_those_of_training(tmp_path):
    """The last checkpoint of each run, at the sizes that all of them were validated at."""
    for name, sizes in (("one", [84]), ("two", [108, 60])):
        data = ImageData("arrow", val_size=8, size=[60, 60], resolutions=sizes, workers=0, batch_size=8)
        save(tmp_path / name, data=data)
    main(["resolution", "--checkpoint", str(tmp_path / "one"), str(tmp_path / "two"), "--images", "4"])
    _, rows = read(tmp_path / "results" / "resolution.csv")
    assert [(r["model"], r["resolution"]) for r in rows] == [
        (m, r) for m in ("one", "two") for r in ("60", "84", "108")
    ]


def test_a_size_of_another_model_that_does_not_fit(tmp_path, capsys):
    """Nobody has asked for it: it is among the sizes of another model's training."""
    for name, size, patch in (("one", 60, 12), ("two", 64, 8)):
        data = ImageData("arrow", val_size=8, size=[size, size], workers=0, batch_size=8)
        save(tmp_path / name, replace(CONFIG, image_size=size, patch_size=patch), data)
    said = refusal([str(tmp_path / "one"), str(tmp_path / "two"), "--images", "4"], capsys)
    assert "not divisible" in said
    assert "Sizes are by default those of all models: --resolutions chooses others." in said
