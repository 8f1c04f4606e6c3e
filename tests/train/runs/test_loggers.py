"""The table of metrics of a run, which a resumed run goes on with, and TensorBoard's hyper-parameters."""

from __future__ import annotations

import csv
import errno
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from performer_string import ViTConfig
from tests.helpers.checkpoints import save
from tests.helpers.runs import fit, killed, stop_in
from tests.helpers.small_vit import SMALL
from tests.helpers.training import TINY
from train import cli
from train.callbacks.records import hyper_parameters
from train.data.module import ImageData
from train.distill import DistillationConfig
from train.loss import LossConfig
from train.module import ImageClassifier
from train.optim import OptimConfig
from train.runs.loggers import MetricsCSV, RunTensorBoard


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_steps_with_columns_that_come_later(tmp_path):
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    for step in range(3):
        log.log_metrics({"train/loss": 1 / (step + 1)}, step)
    log.log_metrics({"val/accuracy": 0.5}, 2)  # of the same step
    log.log_metrics({"train/loss": 0.25}, 3)
    result = rows(log.path)
    assert [row["step"] for row in result] == ["0", "1", "2", "3"]
    assert (result[2]["train/loss"], result[2]["val/accuracy"], result[3]["val/accuracy"]) == ("0.3333333", "0.5", "")


def test_columns_stand_in_one_order(tmp_path):
    """Whatever is logged first; a table of an earlier version takes it when its run goes on."""
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    log.log_metrics({"train/peak_memory_mib": 1, "train/learning_rate": 1, "train/accuracy": 1, "train/loss": 1}, 0)
    log.log_metrics({"epoch": 0, "vit_estimator/layer_10": 1, "vit_estimator/layer_2": 1}, 0)
    log.log_metrics({"val/accuracy_108": 1, "val/accuracy_72": 1, "val/loss_72": 1, "val/accuracy": 1}, 0)
    expected = ["epoch", "step", "seconds", "train/loss", "train/accuracy", "val/loss_72", "val/accuracy"]
    expected += ["val/accuracy_72", "val/accuracy_108", "train/learning_rate", "train/peak_memory_mib"]
    expected += ["vit_estimator/layer_2", "vit_estimator/layer_10"]
    (row,) = rows(log.path)
    assert list(row) == expected
    former = ["step", *expected[:0:-1]]
    log.path.write_text(",".join(former) + "\n" + ",".join(row.get(name, "") for name in former) + "\n")
    resumed = MetricsCSV(log.path)
    resumed.begin(1)
    resumed.log_metrics({"train/loss": 0.5}, 1)
    assert [list(each) for each in rows(log.path)] == [[x for x in expected if x != "epoch"]] * 2


def test_rows_that_a_resumed_run_keeps(tmp_path):
    """Those before its step, and a validation that came after the last of them."""
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    for step in range(6):
        log.log_metrics({"train/loss": step}, step)
    resumed = MetricsCSV(log.path)
    resumed.begin(4)
    resumed.log_metrics({"train/loss": 40}, 4)
    assert [(row["step"], row["train/loss"]) for row in rows(log.path)][3:] == [("3", "3.0"), ("4", "40.0")]
    resumed.log_metrics({"val/accuracy": 0.5}, 5)
    again = MetricsCSV(log.path)
    again.begin(5)
    assert [row["step"] for row in rows(log.path)] == ["0", "1", "2", "3", "4", "5"]
    again.begin(0)
    assert rows(log.path) == []


def test_seconds_go_on_after_a_pause(tmp_path, monkeypatch):
    """Time of training alone: what lies between two processes does not count."""
    now = [1000.0]
    monkeypatch.setattr("train.runs.loggers.time.monotonic", lambda: now[0])
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    for step in range(3):
        now[0] += 2
        log.log_metrics({"train/loss": step}, step)
    now[0] += 1000
    resumed = MetricsCSV(log.path)
    resumed.begin(2)  # trains step 2 again
    now[0] += 3
    resumed.log_metrics({"train/loss": 2}, 2)
    assert [row["seconds"] for row in rows(log.path)] == ["2.0", "4.0", "7.0"]


def test_validation_after_a_training_that_has_ended(tmp_path):
    """As where only that was left of a killed run: the table has columns already, and no training begins."""
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    for step in range(3):
        log.log_metrics({"train/loss": step}, step)
    MetricsCSV(log.path).log_metrics({"val/accuracy": 0.5}, 3)
    assert [(row["train/loss"], row["val/accuracy"]) for row in rows(log.path)] == [
        ("0.0", ""),
        ("1.0", ""),
        ("2.0", ""),
        ("", "0.5"),
    ]


def test_table_on_a_full_disk(tmp_path, monkeypatch):
    log = MetricsCSV(tmp_path / "metrics.csv")
    log.begin(0)
    log.log_metrics({"train/loss": 1}, 0)

    def fill(writer, row):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(csv.DictWriter, "writerow", fill)
    with pytest.raises(OSError, match=r"No space left on device; the rows before this one are kept.*metrics\.csv"):
        log.log_metrics({"train/loss": 2}, 1)
    assert [row["train/loss"] for row in rows(log.path)] == ["1.0"]


def test_hyper_parameters_after_tensorboard_was_closed(tmp_path):
    log = RunTensorBoard(str(tmp_path))
    log.log_metrics({"val/accuracy": 0.5}, 0)
    log.finalize("success")
    log.log_hyperparams({"seed": 3}, {"val/accuracy": 0.5})
    assert any(b"_hparams_" in path.read_bytes() for path in tmp_path.glob("events*"))


def test_hyper_parameters_tell_losses_and_teachers_apart():
    data = ImageData(source="arrow")
    trainer = SimpleNamespace(datamodule=data, max_epochs=1, global_step=2)
    plain = ImageClassifier(SMALL, OptimConfig())
    other = ImageClassifier(
        SMALL,
        OptimConfig(),
        loss=LossConfig("focal", class_weights="balanced"),
        distillation=DistillationConfig("runs/teacher"),
    )
    before, after = hyper_parameters(trainer, plain), hyper_parameters(trainer, other)
    new = {"loss.name": "focal", "loss.class_weights": "balanced", "distillation.teacher": "runs/teacher"}
    assert after == {**before, **new}


def hparams_of(run) -> dict[str, object]:
    """Return the hyper-parameters that TensorBoard has of a run."""
    found = []
    for path in run.glob("events*"):
        plugins = EventAccumulator(str(path)).Reload().PluginTagToContent("hparams")
        if content := plugins.get(metadata.SESSION_START_INFO_TAG):
            values = metadata.parse_session_start_info_plugin_data(content).hparams
            found.append({name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()})
    (values,) = found
    return values


@pytest.mark.slow
def test_hyper_parameters_of_a_training_with_a_loss_and_a_teacher(config, tmp_path):
    teacher = save(tmp_path / "teacher", ViTConfig(**{**TINY["model"]["vit"], "attention": "softmax"})).parents[1]
    changes = ["--model.distillation.teacher", str(teacher), "--model.distillation.temperature", "2"]
    changes += ["--model.optim.redraw_every", "0"]
    changes += ["--model.loss.name", "focal", "--model.loss.class_weights", "[1, 2, 1, 1]"]
    run = tmp_path / "run"
    fit(config, run, *changes, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2")
    values = hparams_of(run)
    parts = ("loss.", "distillation.")
    assert {name: value for name, value in values.items() if name.startswith(parts)} == {
        "loss.name": "focal",
        "loss.class_weights": "[1.0, 2.0, 1.0, 1.0]",
        "distillation.teacher": str(teacher),
        "distillation.temperature": 2.0,
    }
    assert (values["data.batch_size"], values["epochs"], values["steps"]) == (8, 1, 2)


def training(path) -> list[dict[str, str]]:
    """Return the rows without what depends on time."""
    timed = ("seconds", "train/images_per_second", "train/peak_memory_mib")
    return [{name: value for name, value in row.items() if name not in timed} for row in rows(path)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_table_of_a_resumed_run_is_that_of_one_left_alone(config, whole, tmp_path, monkeypatch, how):
    run = tmp_path / "run"
    if how == "stopped":
        stop_in(monkeypatch, 12)
        with pytest.raises(SystemExit):
            fit(config, run)
        monkeypatch.undo()
    else:
        with killed("on_validation_start", 20):
            fit(config, run)
    cli.run(["resume", str(run)])
    expected = training(whole / "metrics.csv")
    assert [int(row["step"]) for row in expected] == list(range(30))
    assert training(run / "metrics.csv") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("every", "drawn"), [("2", 2), ("0", 0)])
def test_figures_at_an_interval(config, tmp_path, monkeypatch, every, drawn):
    """Also where a resume lies between two."""
    calls = []
    monkeypatch.setattr("train.callbacks.figures.frequency_figure", calls.append)
    fit(config, tmp_path / "run", "--figures_every", every, "--trainer.max_epochs", "2")
    cli.run(["resume", str(tmp_path / "run"), "--trainer.max_epochs", "3"])
    assert len(calls) == drawn
