"""Evaluation from the command line: models, sizes, images, arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eval import resolution
from eval.__main__ import build_parser, main
from tests.helpers.checkpoints import CONFIG, read, save
from train.checkpoint import load_trained
from train.data.arrow import ArrowDataset, ArrowTask
from train.data.module import ImageData
from train.data.sizes import Size


def test_several_models_at_several_resolutions(tmp_path, capsys):
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    main(["resolution", "--checkpoint", str(one), str(two), "--resolutions", "60", "84"])
    out = capsys.readouterr().out
    assert "| one " in out
    assert "| null " in out
    assert "44.2" in out
    header, rows = read(tmp_path / "results" / "resolution.csv")
    assert header[0] == f"# command: python -m eval resolution --checkpoint {one} {two} --resolutions 60 84"
    assert "torch" in header[1]
    assert [(row["model"], row["resolution"]) for row in rows] == [(m, r) for m in ("one", "two") for r in ("60", "84")]
    assert all(row["images"] == "32" for row in rows)
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    assert (tmp_path / "results" / "resolution.png").stat().st_size > 5000
    assert not list(tmp_path.rglob("*.part*"))


def test_other_models_are_no_seeds(tmp_path, capsys):
    """By their names they would be, and their mean would be nobody's."""
    paths = [save(tmp_path / "one" / "m-seed0"), save(tmp_path / "two" / "m-seed1", replace(CONFIG, depth=2, seed=1))]
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", *map(str, paths), "--resolutions", "60"])
    assert "m-seed1 and m-seed0 would pass for seeds of one model, but differ in depth" in capsys.readouterr().err
    paths[1] = save(tmp_path / "three" / "m-seed1", replace(CONFIG, seed=1))
    longer = torch.load(paths[1], weights_only=True)
    torch.save({**longer, "global_step": 7}, paths[1].with_name("longer.ckpt"))
    paths[1].with_name("longer.ckpt").rename(paths[1])
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", *map(str, paths), "--resolutions", "60"])
    assert "but differ in steps" in capsys.readouterr().err
    paths[1] = save(tmp_path / "four" / "m-seed1", replace(CONFIG, seed=1))
    main(["resolution", "--checkpoint", *map(str, paths), "--resolutions", "60", "--images", "4"])
    assert "m, mean of 2 seeds" in capsys.readouterr().out


def test_a_model_of_rectangles_is_not_said_to_be_one_of_squares(tmp_path, capsys):
    path = str(save(tmp_path / "one", replace(CONFIG, image_size=[60, 84])))
    main(["resolution", "--checkpoint", path, "--resolutions", "60", "--images", "4"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["trained at"] == "60x84"
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", path, "--resolutions", "60x84"])
    assert "arrow images are square, not 60 x 84" in capsys.readouterr().err


def test_rectangles_of_one_area_share_a_tick_and_not_its_label(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(resolution, "save_figure", lambda figure, path: figures.append(figure))
    same = {"model": "a", "tokens": 48, "accuracy": 50.0, "low": 40.0, "high": 60.0, "images": 9, "null": 10.0}
    sizes = [Size.of(given) for given in ("64x48", "48x64", "32")]
    resolution.plot([{**same, "resolution": size, "trained at": sizes[2]} for size in sizes], tmp_path / "a.png")
    assert figures[0].axes[0].get_ylim()[0] < same["null"]  # a line on the frame would not be seen
    labels = [label.get_text() for label in figures[0].axes[0].get_xticklabels()]
    assert sorted(map(sorted, (label.split("\n") for label in labels))) == [["32"], ["48x64", "64x48"]]


def test_an_evaluation_on_the_cpu_takes_no_device(capsys):
    with pytest.raises(SystemExit):
        main(["redundancy", "--device", "cuda"])
    assert "unrecognized arguments: --device cuda" in capsys.readouterr().err


def test_one_model_writes_beside_its_run(tmp_path):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--images", "10"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["images"] == "10"


def test_a_resolution_named_twice_is_no_second_seed(tmp_path, capsys):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "60", "--images", "4"])
    assert "seeds" not in capsys.readouterr().out
    assert len(read(tmp_path / "one" / "results" / "resolution.csv")[1]) == 1


def test_models_of_other_tasks_are_not_in_one_table(tmp_path, capsys):
    """They would stand beside one null score."""
    one, two, few = (str(save(tmp_path / name)) for name in ("one", "two", "few"))
    for path, name, value in ((two, "arrow", {"distance": "ray", "cell": 12}), (few, "val_size", 16)):
        content = torch.load(path, weights_only=True)
        own = content["ImageData"]["config"]
        own[name] = {**own[name], **value} if isinstance(value, dict) else value
        torch.save(content, path)
    for path, message in ((two, "distance: adjacent and ray"), (few, "images: 32 and 16")):
        with pytest.raises(SystemExit):
            main(["resolution", "--checkpoint", one, path, "--resolutions", "60"])
        assert f"would be tested on different images ({message})" in capsys.readouterr().err
    main(["resolution", "--checkpoint", one, few, "--resolutions", "60", "--images", "16"])
    main(["resolution", "--checkpoint", one, "--resolutions", "60", "--images", "50"])
    assert {row["images"] for row in read(tmp_path / "one" / "results" / "resolution.csv")[1]} == {"50"}  # drawn


@pytest.mark.parametrize("evaluation", ["resolution", "locality"])
def test_two_models_of_one_name(evaluation, tmp_path, capsys):
    paths = [str(save(tmp_path / folder / "one")) for folder in ("a", "b")]
    with pytest.raises(SystemExit):
        main([evaluation, "--checkpoint", *paths, "--resolutions", "60"])
    assert "two checkpoints have the same name, so that their rows would mix: one" in capsys.readouterr().err


def test_accuracy_is_that_of_the_model_on_the_images_asked_for(tmp_path):
    """Against a plain loop over them; models are studied on those of validation."""
    path, found = save(tmp_path / "one"), {}
    trained = load_trained(path)
    for split in ("test", "val"):
        main(["resolution", "--checkpoint", str(path), "--resolutions", "84", "--out", str(tmp_path), "--split", split])
        data = ArrowDataset(ArrowTask(), 84, 32, split)
        right = sum(int(trained.classifier(x[None] / 255).argmax()) == y for x, y in data)
        found[split] = float(read(tmp_path / "resolution.csv")[1][0]["accuracy"])
        assert found[split] == pytest.approx(100 * right / 32, abs=0.01)
    assert found["test"] != found["val"]
    main(["resolution", "--checkpoint", str(path), "--resolutions", "84", "--out", str(tmp_path / "more")])
    assert float(read(tmp_path / "more" / "resolution.csv")[1][0]["accuracy"]) == found["test"]
    parser = build_parser()
    given = ["--checkpoint", str(path), "--resolutions", "84"]
    splits = {name: parser.parse_args([name, *given]).split for name in ("resolution", "intervene", "estimator")}
    assert splits == {"resolution": "test", "intervene": "val", "estimator": "val"}


def test_a_run_from_within_its_folder_has_its_name(tmp_path, monkeypatch, capsys):
    path = save(tmp_path / "one")
    monkeypatch.chdir(tmp_path / "one")
    for given in (".", str(path.relative_to(tmp_path / "one"))):
        main(
            [
                "resolution",
                "--checkpoint",
                given,
                "--resolutions",
                "60",
                "--images",
                "4",
                "--out",
                str(tmp_path / "out"),
            ]
        )
        assert read(tmp_path / "out" / "resolution.csv")[1][0]["model"] == "one"
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", ".", "--resolutions", "61"])
    assert "error: one: an image of 61 x 61 pixels is not divisible" in capsys.readouterr().err


def test_positions_can_be_interpolated(tmp_path):
    path = save(tmp_path / "one", replace(CONFIG, encoding="rope"))
    from train.checkpoint import load_trained

    model = load_trained(path, positions="interpolate").classifier.vit
    assert model.grid_positions((10, 10)).max() < 5
    main(["resolution", "--checkpoint", str(path), "--resolutions", "120", "--positions", "interpolate"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--resolutions", "sixty"],
            "like 168, or height x width, like 96x128, not 'sixty'",
        ),
        (["--resolutions", "0"], "not '0'"),
        (["--resolutions", "90"], "90 x 90 pixels is not divisible into patches of 12 x 12"),
        (["--resolutions", "36"], "60 pixels or more, not 36"),
        (["--resolutions", "60", "--positions", "stretch"], "invalid choice: 'stretch'"),
        (["--resolutions", "60", "--images", "-4"], "a number of images is 0 or more, not '-4'"),
        (["--resolutions", "60", "--device", "mps"], "--device has to be auto, cpu, cuda or cuda:NUMBER, not 'mps'"),
        (["--resolutions", "60", "--device", "gpu"], "--device has to be auto, cpu, cuda or cuda:NUMBER, not 'gpu'"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["resolution", "--checkpoint", str(save(tmp_path / "one")), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one" / "results").exists()


def test_a_folder_of_runs_is_not_a_run(tmp_path, capsys):
    save(tmp_path / "runs" / "one")
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", str(tmp_path / "runs")])
    assert f"It is a folder of runs: give {tmp_path / 'runs'}/*/checkpoints/last.ckpt." in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", str(tmp_path / "no.ckpt"), "--resolutions", "60"])
    assert "there is no checkpoint" in capsys.readouterr().err
    (tmp_path / "no").mkdir()
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", str(tmp_path / "no"), "--resolutions", "60"])
    assert "there is no checkpoint" in capsys.readouterr().err


def test_folders_of_runs_at_the_sizes_of_their_training(tmp_path):
    """The last checkpoint of each, at the sizes that each of them was validated at."""
    for name, sizes in (("one", [84]), ("two", [108, 60])):
        data = ImageData("arrow", val_size=8, size=[60, 60], resolutions=sizes, workers=0, batch_size=8)
        save(tmp_path / name, data=data)
    main(["resolution", "--checkpoint", str(tmp_path / "one"), str(tmp_path / "two"), "--images", "4"])
    _, rows = read(tmp_path / "results" / "resolution.csv")
    assert [(r["model"], r["resolution"]) for r in rows] == [
        (m, r) for m in ("one", "two") for r in ("60", "84", "108")
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_where_one_was_asked_for(tmp_path, capsys):
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--device", "cuda"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "torch sees no GPU here" in capsys.readouterr().err
