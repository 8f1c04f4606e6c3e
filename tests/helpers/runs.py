"""Training runs by the command line, what they write, and ways to stop them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.training import last
from train import cli, sweep
from train.callbacks.stopping import CleanStop
from train.checkpoint_file import read_checkpoint
from train.command.lightning_cli import TrainingCLI


class KilledError(Exception):
    """A run is killed."""


def fit(config: Path, run: Path, *arguments: str) -> TrainingCLI:
    """Train by a configuration."""
    return cli.run(["fit", "--config", str(config), "--run_dir", str(run), *arguments])


def fails(arguments: list[str], capsys) -> str:
    """Return the one message of a command that is refused."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def run_sweep(path: Path, *arguments: str) -> tuple[int, Path]:
    """Run a sweep file into the folder `out` beside it, and return the exit status and that folder."""
    out = path.parent / "out"
    try:
        sweep.main([str(path), "--out", str(out), *arguments])
    except SystemExit as stop:
        return stop.code, out
    return 0, out


def metrics(run: Path) -> dict:
    """Return the final metrics of a run."""
    return json.loads((run / "metrics.json").read_text())


def write_log(run: Path, logged: Mapping[str, Mapping[int, float]]) -> Path:
    """Write `metrics.csv` of a training run that takes a second a step, and return its folder."""
    run.mkdir(exist_ok=True)
    steps = sorted({step for values in logged.values() for step in values})
    rows = [
        ["step", "seconds", *logged],
        *([step, step, *(each.get(step, "") for each in logged.values())] for step in steps),
    ]
    (run / "metrics.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return run


def validations(run: Path) -> list[int]:
    """Return the steps, counted from 0, after which there was a validation.

    They are sorted: names of files of one second end with a count, and TensorBoard reads 10 before 9.
    """
    return sorted(event.step for event in EventAccumulator(str(run)).Reload().Scalars("val/accuracy"))


def assert_same_weights(one: Path, two: Path) -> int:
    """Check that two runs ended at the same step with the same weights, bit for bit, and return that step."""
    a, b = (read_checkpoint(last(run)) for run in (one, two))
    assert a["global_step"] == b["global_step"]
    for part in ("state_dict", "current_model_state"):  # with an average, the plain weights are the second
        assert (part in a) == (part in b), part
        assert a.get(part, {}).keys() == b.get(part, {}).keys(), part
        differ = [name for name, value in a.get(part, {}).items() if not torch.equal(value, b[part][name])]
        assert not differ, f"{part}: {differ}"
    return int(a["global_step"])


def stop_in(monkeypatch, batch: int) -> None:
    """Send a signal in the batch of this number, of all epochs."""

    begin = CleanStop.on_train_batch_start

    def ask(self, trainer, module, data, batch_idx):
        begin(self, trainer, module, data, batch_idx)
        if trainer.fit_loop.epoch_loop.total_batch_idx == batch:
            self._receive(signal.SIGTERM, None)

    monkeypatch.setattr(CleanStop, "on_train_batch_start", ask)


@contextmanager
def killed(hook: str, when: int | Callable[[Trainer], bool]) -> Iterator[None]:
    """Kill the run within, which must get so far.

    Args:
        hook: of a callback, like "on_validation_start".
        when: the optimiser's step, or whether it is time.
    """

    def die(self, trainer, *others):
        if when(trainer) if callable(when) else trainer.global_step == when:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Callback, hook, die)
        with pytest.raises(KilledError):
            yield
