"""Evaluation from the command line: tables, files, intervals, errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from saved import CONFIG, read, save

from eval import checkpoints, report
from eval.__main__ import build_parser, main
from eval.report import table, wilson, write_csv
from eval.resolution import summary
from eval.seeds import over_seeds
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


def test_seeds_of_one_model_are_one_row_with_their_interval():
    def row(model, accuracy, resolution=60):
        size = Size.of(resolution)
        return {"model": model, "resolution": size, "accuracy": accuracy, "low": 1.0, "high": 2.0, "null": 44.0}

    rows = [row("a-seed0", 90.0), row("a-seed1", 94.0), row("a-seed2", 98.0), row("b-seed0", 50.0)]
    line, single, null = summary(rows)
    # 4.3027 is the 97.5 % point of Student's t with 2 degrees of freedom, the standard deviation 4
    assert line == {"accuracy in %": "a, mean of 3 seeds", "60 px": f"94.0 ({94 - 4.3027 * 4 / 3**0.5:.1f}-100.0)"}
    assert single == {"accuracy in %": "b-seed0", "60 px": "50.0 (1.0-2.0)"}
    alike = [{**row(f"a-seed{i}", 100.0), "low": 99.2, "high": 100.0} for i in range(3)]
    assert summary(alike)[0]["60 px"] == "100.0 (99.2-100.0)"  # no more certain than one of them
    assert null["60 px"] == "44.0"
    apart = over_seeds([row("a-seed0", 90.0), row("a-seed1", 80.0), row("a-seed0", 70.0, 84), row("a-seed1", 50.0, 84)])
    assert [(r["resolution"], r["accuracy"]) for r in apart] == [((60, 60), 85.0), ((84, 84), 60.0)]


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


def test_an_evaluation_on_the_cpu_takes_no_device(capsys):
    with pytest.raises(SystemExit):
        main(["redundancy", "--device", "cuda"])
    assert "unrecognized arguments: --device cuda" in capsys.readouterr().err


def test_one_model_writes_beside_its_run(tmp_path):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--images", "10"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["images"] == "10"


def test_results_of_another_command_are_kept(tmp_path):
    path = str(save(tmp_path / "one"))
    for positions in ("extrapolate", "interpolate", "interpolate"):
        main(["resolution", "--checkpoint", path, "--resolutions", "84", "--images", "4", "--positions", positions])
    names = sorted(p.name for p in (tmp_path / "one" / "results").iterdir())
    assert names == ["resolution.1.csv", "resolution.1.png", "resolution.csv", "resolution.png"]
    assert "extrapolate" in read(tmp_path / "one" / "results" / "resolution.1.csv")[0][0]
    assert "interpolate" in read(tmp_path / "one" / "results" / "resolution.csv")[0][0]


def stop_at(monkeypatch, size: int, error: BaseException) -> None:
    accuracy = checkpoints.accuracy

    def fails(trained, at, *rest):
        if at == (size, size):
            raise error
        return accuracy(trained, at, *rest)

    monkeypatch.setattr(checkpoints, "accuracy", fails)


def test_what_another_command_measured_before_it_was_stopped_is_kept(tmp_path, monkeypatch):
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 108, KeyboardInterrupt())
    for first in ("60", "84"):
        with pytest.raises(SystemExit):
            main([*given, "--resolutions", first, "108"])
    results = tmp_path / "one" / "results"
    kept = {path.name: read(path)[1][0]["resolution"] for path in results.iterdir()}
    assert kept == {"resolution.partial.1.csv": "60", "resolution.partial.csv": "84"}


def test_a_resolution_named_twice_is_no_second_seed(tmp_path, capsys):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "60", "--images", "4"])
    assert "seeds" not in capsys.readouterr().out
    assert len(read(tmp_path / "one" / "results" / "resolution.csv")[1]) == 1


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (ValueError("no such luck"), 2)])
def test_what_was_measured_before_a_stop_is_kept(error, status, tmp_path, monkeypatch, capsys):
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--images", "4"]
    stop_at(monkeypatch, 84, error)
    with pytest.raises(SystemExit) as stop:
        main([*given, "--resolutions", "60", "84"])
    assert stop.value.code == status
    partial = tmp_path / "one" / "results" / "resolution.partial.csv"
    assert f"what was measured is in {partial}" in capsys.readouterr().err
    assert [row["resolution"] for row in read(partial)[1]] == ["60"]
    main([*given, "--resolutions", "60"])
    assert partial.exists()  # of another command
    monkeypatch.undo()
    main([*given, "--resolutions", "60", "84"])
    assert not partial.exists()


def test_a_place_that_cannot_be_written_to(tmp_path, capsys):
    """Known before anything is measured."""
    (tmp_path / "file").write_text("")
    given = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60"]
    with pytest.raises(SystemExit):
        main([*given, "--out", str(tmp_path / "file" / "in")])
    assert "file is not a folder that can be written to" in capsys.readouterr().err


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


@pytest.mark.parametrize(("right", "total"), [(0, 10), (5, 10), (10, 10), (990, 1000)])
def test_wilson_interval(right, total):
    """Its ends are the shares whose own deviation puts the observed one 1.96 sigma away."""
    low, high = wilson(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(right / total - end) == pytest.approx(1.96 * (end * (1 - end) / total) ** 0.5)
    with pytest.raises(ValueError, match="at least one image"):
        wilson(0, 0)


def test_a_csv_replaces_its_file_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [{"a": 1}], ["first"])
    with pytest.raises(ValueError, match="dict contains fields"):
        write_csv(path, [{"a": 2}, {"a": 3, "b": 4}], ["second"])
    assert read(path) == (["# first"], [{"a": "1"}])


def test_tables():
    result = {"model": "m", "accuracy": 50.0, "low": 40.0, "high": 60.0, "null": 25.0}
    lines = table(summary([{**result, "resolution": Size.of(size)} for size in (60, 84)])).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:4]] == ["accuracy in %", "60 px", "84 px"]
    assert [cell.strip() for cell in lines[2].split("|")[1:4]] == ["m", "50.0 (40.0-60.0)", "50.0 (40.0-60.0)"]
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == ["null", "25.0", "25.0"]


def test_cells_of_a_table_are_as_they_are_given():
    """Differences keep their sign, and numbers stand on the right."""
    rows = [{"model": "a", "x": "+18.3", "y": 0.1 + 0.2, "z": "1.5 (1.2-1.8)"}]
    rows += [{"model": "b", "x": "-4.0", "y": math.nan, "z": ""}]
    lines = table(rows).splitlines()
    assert lines[2] == "| a       | +18.3 | 0.3 | 1.5 (1.2-1.8) |"
    assert lines[3] == "| b       |  -4.0 | nan |               |"


def test_models_trained_at_other_sizes_are_marked_each(tmp_path):
    axis = Figure().subplots()
    report.mark_training(axis, [{"trained at": Size.of(size)} for size in (60, 84, 60, [90, 160])])
    assert [line.get_xdata()[0] for line in axis.lines] == [60, 84, 120]
