"""What runs and results say of where they come from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import torch

from eval.report import environment
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.runs.environment import code


def git(folder, *arguments):
    custom = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *custom, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_code_version_names_commit(tmp_path):
    """Also where a tag would be nearer at hand, and with what differs from it."""
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "-q")
    (clone / "file").write_text("one")
    git(clone, "add", "file")
    git(clone, "commit", "-q", "-m", "one")
    git(clone, "tag", "v1", "-m", "one")
    commit = git(clone, "rev-parse", "--short", "HEAD")
    assert code(clone) == f"performer_string 0.1.0, commit {commit}"
    (clone / "run").write_text("not the code's")
    assert code(clone) == f"performer_string 0.1.0, commit {commit}"
    (clone / "file").write_text("two")
    assert code(clone) == f"performer_string 0.1.0, commit {commit} and changes"
    installed = clone / "lib"
    installed.mkdir()
    assert code(installed) == "performer_string 0.1.0"  # the repository around it is another one


@pytest.mark.slow
def test_header_of_results():
    command, device, made_by = environment(["length", "--tokens", "4 5"], torch.device("cpu"))
    assert command == "command: python -m eval length --tokens '4 5'"
    assert device.startswith("device: ")
    assert re.search(rf"{torch.get_num_threads()} threads?; torch {re.escape(torch.__version__)}, Python 3\.", device)
    assert made_by == f"code: {code()}"


@pytest.mark.slow
def test_history_of_a_run(config, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    first, second = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert first["command"] == f"python -m train fit --config {config} --run_dir {whole}"
    resumed = f"fit --config {run}/config.yaml --ckpt_path {last(run)} --run_dir {run} --trainer.max_epochs 4"
    assert second["command"] == f"python -m train resume {run} --trainer.max_epochs 4"
    assert second["expanded"] == f"python -m train {resumed}"
    assert [line["from_step"] for line in (first, second)] == [0, 30]
    assert read_checkpoint(last(run))["global_step"] == 40
    assert {(line["code"], line["processes"]) for line in (first, second)} == {(code(), 1)}
    assert f"torch {torch.__version__}" in first["versions"]
    assert "thread" in first["device"]
