"""One table of models: differences, what was recorded in training, and results that are measured once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eval import result_cache
from eval.accuracy.compare_report import difference_cell, notes
from eval.cli import main
from eval.training_log import read_log, seconds_to
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.runs import write_log
from train.data.images import Transformed
from train.runs.loggers import MetricsCSV

FAST = ["--resolutions", "60", "--images", "16"]


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Return the models whose images are measured, in the order of the calls."""
    names: list[str] = []
    measure = result_cache.measure_images

    def counted(trained, *rest, **options):
        names.append(trained.name)
        return measure(trained, *rest, **options)

    monkeypatch.setattr(result_cache, "measure_images", counted)
    return names


@pytest.mark.slow
def test_what_was_measured_is_read_again(tmp_path, measured, capsys):
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    for more in ([], [], ["--split", "val"], ["--fresh"]):
        main(["compare", str(one), str(two), *FAST, *more])
    assert measured == ["one", "two"] * 3  # the second call measures nothing
    content = torch.load(one, weights_only=True)
    name = next(iter(content["state_dict"]))
    content["state_dict"][name] += 1e-3
    torch.save(content, one)
    main(["compare", str(one), str(two), *FAST])
    assert measured == [*["one", "two"] * 3, "one"]  # other weights are another model
    _, rows = read(tmp_path / "results" / "compare.csv")
    assert [(row["model"], row["reference"], row["split"]) for row in rows] == [
        ("one", "one", "test"),
        ("two", "one", "test"),
    ]
    assert float(rows[0]["difference"]) == 0
    assert float(rows[1]["difference"]) == pytest.approx(
        float(rows[1]["accuracy"]) - float(rows[0]["accuracy"]), abs=1e-3
    )
    assert "difference to one at 60 px" in capsys.readouterr().out


def test_damaged_results_are_measured_again(tmp_path, measured):
    """A machine that goes down leaves files empty, or full of zeros."""
    one = save(tmp_path / "one")
    main(["compare", str(one), *FAST])
    files = [*tmp_path.rglob("cache/*")]
    assert {file.suffix for file in files} == {".json", ".npz"}
    for content in (b"", bytes(100), b"{"):
        for file in files:
            file.write_bytes(content)
        main(["compare", str(one), *FAST])
    assert measured == ["one"] * 4
    main(["compare", str(one), *FAST])
    assert len(measured) == 4  # they are whole again


def test_results_of_images_that_may_be_others_are_not_kept(tmp_path):
    class Unknown(torch.utils.data.Dataset):
        pass

    unknown = Transformed(Unknown(), torch.arange(3), None, 1, 2)
    assert result_cache.images_digest(unknown) is None
    for data, is_known in ((np.zeros((2, 3)), True), (torch.zeros(2, 3), True), (["a.png", "b.png"], False)):
        of_own = SimpleNamespace(dataset=SimpleNamespace(data=data, targets=[0, 1]), indices=torch.arange(2))
        assert (result_cache.images_digest(of_own) is not None) == is_known  # paths stay, where the images change
    assert result_cache.images_digest(object()) == ""  # drawn, by what stands in the settings
    published, run = tmp_path / "a" / "model.safetensors", tmp_path / "a" / "checkpoints" / "last.ckpt"
    assert result_cache.cache_of(published) == Path("runs/results/cache")  # nothing is written beside a published model
    assert result_cache.cache_of(run) == tmp_path / "a" / "results" / "cache"


def test_accuracy_is_that_of_eval_resolution(tmp_path):
    path = str(save(tmp_path / "one"))
    for name, run in (("compare", [path]), ("resolution", ["--checkpoint", path])):
        main([name, *run, *FAST, "--out", str(tmp_path)])
    rows = [read(tmp_path / f"{name}.csv")[1][0] for name in ("compare", "resolution")]
    assert {column: rows[0][column] for column in rows[1]} == rows[1]


def log_training(run, speeds, accuracies) -> None:
    write_log(run, {"train/images_per_second": dict(enumerate(speeds)), "val/accuracy": accuracies})


def test_equal_models_are_said_to_be_equal():
    nothing = {"difference": 0.0, "difference low": 0.0, "difference high": 0.0}
    assert difference_cell(nothing) == "none: right on the same images"
    assert difference_cell({**nothing, "difference high": 0.01}) == "+0.0 (+0.0 to +0.0)"  # of large sets of images


@pytest.mark.slow
def test_what_training_recorded(tmp_path, capsys):
    paths = [str(save(tmp_path / f"m-seed{seed}", replace(CONFIG, seed=seed))) for seed in (0, 1)]
    other = str(save(tmp_path / "other", replace(CONFIG, depth=2)))
    log_training(tmp_path / "m-seed0", [10, 30, 20], {60: 0.5, 120: float(np.float32(0.9))})  # below 0.9
    log_training(tmp_path / "m-seed1", [20], {60: 0.5, 120: 0.6})
    main(["compare", *paths, other, *FAST, "--target", "90", "--reference", "other", "--out", str(tmp_path)])
    rows = {row["model"]: row for row in read(tmp_path / "compare.csv")[1]}
    assert rows["m-seed0"]["training images/s"] == "20.0"
    assert rows["m-seed0"]["validations"] == "61:50 121:90"
    seconds = {name: row["seconds to target"] for name, row in rows.items()}
    assert float(seconds.pop("m-seed0")) == 120
    assert seconds == {"m-seed1": "", "other": ""}
    said = capsys.readouterr().out
    assert "(1 of 2)" in said
    assert "not recorded" in said
    assert "| m, mean of 2 seeds " in said
    assert (tmp_path / "compare.png").stat().st_size > 5000


def test_what_a_trainer_wrote_is_read(tmp_path):
    """Tables of before have no seconds."""
    path = str(save(tmp_path / "one"))
    log = MetricsCSV(tmp_path / "one" / "metrics.csv")
    log.begin(0)
    for step, speed in enumerate((10, 30, 20)):
        log.log_metrics({"train/images_per_second": speed, "train/peak_memory_mib": 100 + step}, step)
    log.log_metrics({"val/accuracy": 0.9}, 2)
    main(["compare", path, *FAST, "--target", "80"])
    (row,) = read(tmp_path / "one" / "results" / "compare.csv")[1]
    assert (row["training images/s"], row["training peak MiB"], row["validations"]) == ("20.0", "102.0", "3:90")
    assert float(row["seconds to target"]) < 60
    (tmp_path / "one" / "metrics.csv").write_text("step,val/accuracy\n0,0.5\n1,\n2,0.9\n")
    scalar = read_log(tmp_path / "one")["val/accuracy"]
    assert scalar == ([0, 2], [0.5, 0.9], [], [])
    assert seconds_to(scalar, 0.8) is None


def test_user_mistakes(tmp_path, capsys):
    path = str(save(tmp_path / "one"))
    for more, message in (
        (["--reference", "two"], "--reference two: there is none among one."),
        (["--target", "0"], "--target is an accuracy in %, above 0 and at most 100, not 0."),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["compare", path, *FAST, *more])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_a_note_says_what_intervals_of_differences_are_over():
    """They are by the bootstrap, and those of accuracies over seeds are Student's."""

    def said(*names: str) -> list[str]:
        return notes([{"model": name, "images": 2000} for name in names])

    assert said("a") == []
    (one,) = said("a-seed0", "b-seed0")
    assert "by the bootstrap over the 2,000 images, of one seed each: other seeds can differ by more." in one
    accuracies, differences = said("a-seed0", "a-seed1", "b-seed0", "b-seed1")
    assert "Intervals of accuracies over seeds are Student's" in accuracies
    assert "by the bootstrap over the 2,000 images and these seeds. With few seeds they are too short" in differences
