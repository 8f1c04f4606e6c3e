"""Finished runs to publish, and refusals of `train.publish`."""

from __future__ import annotations

import json

import pytest

from tests.helpers.checkpoints import CONFIG, save
from train.publish import main

COMMAND = "python -m train fit --config /far/away/train/configs/arrow.yaml --run_dir /far/away/run"
HISTORY = {"command": COMMAND, "code": "performer_string 0.1.0", "device": "CPU", "versions": "torch 2", "from_step": 0}


def finished_run(folder, name="ants", data=None, config=CONFIG):
    """Return the folder of a run with its last checkpoint, history and metrics."""
    run = save(folder / name, config, data).parents[1]
    (run / "history.jsonl").write_text(json.dumps(HISTORY) + "\n")
    (run / "metrics.json").write_text(json.dumps({"step": 7, "val/accuracy": 0.5, "val/accuracy_60": 0.5}))
    return run


def refused_publishing(arguments, capsys) -> str:
    """Return the message of a command that publishes nothing."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    return capsys.readouterr().err
