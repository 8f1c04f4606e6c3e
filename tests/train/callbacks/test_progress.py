"""Progress: the time left of epochs and runs, in a resumed epoch too, on terminals and in files."""

from __future__ import annotations

import io
import math
import sys
from types import SimpleNamespace

import pytest

from performer_string import ViT, ViTConfig
from tests.helpers.runs import fit, stop_in
from tests.helpers.training import TINY
from train import cli
from train.callbacks.progress import LineProgress, TerminalProgress, progress_bar
from train.callbacks.records import longer
from train.callbacks.remaining import Pace, batches_left, epoch_title
from train.callbacks.summary import describe, images_of_a_step
from train.inspection import multiplications


def trainer(**changes):
    plain = {"num_training_batches": 10, "max_epochs": 4, "max_steps": -1, "current_epoch": 1, "global_step": 13}
    plain |= {"accumulate_grad_batches": 1, "estimated_stepping_batches": 40, "fast_dev_run": False}
    return SimpleNamespace(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, (7, 27)),
        ({"max_steps": 16}, (3, 3)),
        ({"max_epochs": -1, "max_steps": 100}, (7, 87)),
        ({"max_epochs": -1}, (7, math.inf)),
        ({"accumulate_grad_batches": 2, "max_steps": 15}, (4, 4)),
    ],
    ids=str,
)
def test_batches_left(changes, left):
    assert batches_left(trainer(**changes), 2) == left


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "Epoch 2/4"),
        ({"max_steps": 16}, "Epoch 2/2"),  # not of epochs that are never reached
        ({"max_steps": 21}, "Epoch 2/3"),
        ({"max_steps": 400}, "Epoch 2/4"),
        ({"max_steps": 11, "accumulate_grad_batches": 4}, "Epoch 2/4"),
        ({"max_epochs": -1, "max_steps": 100}, "Epoch 2/10"),
        ({"max_epochs": -1}, "Epoch 2"),
        ({"num_training_batches": math.inf, "max_steps": 100}, "Epoch 2/4"),
    ],
    ids=str,
)
def test_epochs_that_are_reached(changes, title):
    assert epoch_title(trainer(**changes)) == title


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"max_epochs": 2, "current_epoch": 2, "global_step": 20}, "--trainer.max_epochs 4"),
        ({"max_epochs": 8, "max_steps": 20, "global_step": 20}, "--trainer.max_steps 40"),
        ({"max_epochs": -1, "max_steps": 15, "global_step": 15}, "--trainer.max_steps 30"),
        ({"max_epochs": 2, "max_steps": 20, "global_step": 20}, "--trainer.max_steps 40 --trainer.max_epochs 4"),
        (
            {"max_epochs": 2, "max_steps": 25, "current_epoch": 2, "global_step": 20},
            "--trainer.max_epochs 4 --trainer.max_steps 40",
        ),
    ],
    ids=str,
)
def test_how_to_train_for_longer(changes, options):
    """More epochs train nothing where steps have ended the training, and the reverse."""
    assert longer(trainer(**changes)) == options


def test_pace_is_of_this_process_without_its_first_batch():
    times = iter([50.0, 51.0, 53.0])
    pace = Pace(lambda: next(times))
    assert pace.seconds(0) == 0  # nothing is left
    pace.count()  # which may have compiled something
    assert pace.seconds(4) == math.inf
    pace.count()
    pace.count()
    assert pace.seconds(4) == 6.0


def test_bar_of_a_resumed_epoch(monkeypatch):
    """Lightning calls no `on_train_epoch_start` there."""
    monkeypatch.setattr(sys, "stdout", terminal := io.StringIO())
    bar, state = TerminalProgress(), trainer()
    monkeypatch.setattr(TerminalProgress.__mro__[2], "get_metrics", lambda *_: {"train/loss": 1.0, "v_num": 0})
    bar.on_train_start()
    for batch in (6, 7):
        bar.on_train_batch_start(state, None, None, batch)
        bar.on_train_batch_end(state, None, None, None, batch)
    shown = bar.train_progress_bar.format_dict
    assert (shown["initial"], shown["n"], shown["total"]) == (6, 8, 10)
    assert "Epoch 2/4" in terminal.getvalue()
    assert "run ends in=0:00:00, step=13/40, loss=1" in terminal.getvalue()  # not `train/loss`, which is wider
    assert "v_num" not in terminal.getvalue()


def test_lines_in_a_file(monkeypatch, capsys):
    now = [0.0]
    lines, state = LineProgress(clock=lambda: now[0]), trainer()
    monkeypatch.setattr(LineProgress, "get_metrics", lambda *_: {"loss": 0.123456, "v_num": 0})
    for batch in range(6, 10):
        now[0] += 40
        lines.on_train_batch_end(state, None, None, None, batch)
    lines.on_train_epoch_end(state, None)
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 2/4:  80%, step 13/40, loss 0.1235; epoch ends in 0:01:20, run in 0:14:40",
        "Epoch 2/4: 100%, step 13/40, loss 0.1235; epoch ends in 0:00:00, run in 0:13:20",
        "Epoch 2/4: 100%, step 13/40, loss 0.1235; run ends in 0:13:20",
    ]
    assert isinstance(progress_bar(), LineProgress)  # in a test


def test_lines_say_what_a_validation_measured_once(monkeypatch, capsys):
    lines, state = LineProgress(clock=lambda: 0.0), trainer()
    monkeypatch.setattr(LineProgress, "get_metrics", lambda *_: {"loss": 0.5, "val/accuracy": 0.75})
    for validates in (False, True, False):
        if validates:
            lines.on_validation_end(state, None)
        lines.on_train_epoch_end(state, None)
    assert ["val/accuracy 0.75" in line for line in capsys.readouterr().out.splitlines()] == [False, True, False]


def test_summary_of_a_model():
    vit = ViT(ViTConfig(**TINY["model"]["vit"]))
    line = describe(vit)
    assert f"{sum(p.numel() for p in vit.parameters()) / 1e6:.3g} M parameters" in line
    assert f"{multiplications(vit, [60, 60]) / 1e9:.3g} GMACs an image of 60 px, 25 tokens" in line
    finer = ViT(
        ViTConfig(**{**TINY["model"]["vit"], "position_grid": [3, 3]})
    )  # as from a checkpoint of smaller images
    assert "an image of 60 px, 25 tokens" in describe(finer)
    assert vit.training
    assert multiplications(vit, [120, 120]) > 3.5 * multiplications(vit, [60, 60])


def test_a_model_with_hooks_has_a_summary():
    """lightning: a profiler puts hooks on every module, with which nothing is folded."""
    vit = ViT(ViTConfig(**TINY["model"]["vit"]))
    for module in vit.modules():
        module.register_forward_pre_hook(lambda *_: None)
    assert multiplications(vit, [60, 60]) is None
    assert "M parameters" in describe(vit)


@pytest.mark.slow
def test_progress_of_a_run(config, tmp_path, monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    shown = ["--trainer.enable_progress_bar", "true", "--trainer.enable_model_summary", "true"]
    stop_in(monkeypatch, 4)
    with pytest.raises(SystemExit):
        fit(config, tmp_path / "run", "--trainer.max_epochs", "2", *shown)
    monkeypatch.undo()
    capsys.readouterr()
    cli.run(["resume", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert [line.split(", train")[0] for line in out.splitlines() if line.startswith("Epoch")] == [
        "Epoch 1/2: 100%, step 10/20",
        "Epoch 2/2: 100%, step 20/20",
    ]
    assert caplog.text.count("GMACs an image of 60 px") == 2
    assert "FLOPs" not in out + caplog.text


@pytest.mark.slow
def test_bar_of_a_stopped_run(config, tmp_path, monkeypatch, capsys, caplog, recwarn):
    """Each validation has its size, and the message of a stop begins a line of its own."""
    caplog.set_level("INFO")
    monkeypatch.setattr("train.callbacks.defaults.progress_bar", TerminalProgress)
    lines: list[str] = []
    monkeypatch.setattr("train.callbacks.stopping.rank_zero_info", lambda text: lines.append(capsys.readouterr().out))
    options = ["--trainer.enable_progress_bar", "true", "--trainer.log_every_n_steps", "50"]
    stop_in(monkeypatch, 4)
    with pytest.raises(SystemExit):
        fit(config, tmp_path / "run", "--trainer.max_epochs", "1", *options)
    assert lines[-1].endswith("\n")
    assert "step=5/10" in lines[-1].splitlines()[-1]
    monkeypatch.undo()
    monkeypatch.setattr("train.callbacks.defaults.progress_bar", TerminalProgress)
    capsys.readouterr()
    caplog.set_level("INFO")
    cli.run(["resume", str(tmp_path / "run")])
    assert "Validation at 60 px" in capsys.readouterr().out
    assert f"step 10. Metrics: {tmp_path / 'run' / 'metrics.csv'}" in caplog.text
    said = caplog.text + "".join(str(each.message) for each in recwarn)
    for noise in ("GPU available", "log_every_n_steps", "is not empty"):
        assert noise not in said


def test_the_images_of_a_step_are_said_where_they_are_not_a_batch():
    data = SimpleNamespace(batch_size=16)
    step = lambda world, every: images_of_a_step(  # noqa: E731
        SimpleNamespace(datamodule=data, world_size=world, accumulate_grad_batches=every)
    )
    assert step(1, 1) == ""
    assert step(1, 4) == "64 images, 16 images x 4 batches"
    assert step(2, 2) == "64 images, 16 images x 2 processes x 2 batches"
