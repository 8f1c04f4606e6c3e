"""Runs of a sweep can be stopped, killed and started again."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.helpers.runs import fails, run_sweep
from tests.helpers.training import TINY, write_sweep
from train import cli
from train.sweeps.file import read_sweep
from train.sweeps.runner import SweepRunner

FAKE = """
import json, pathlib, signal, sys, time
folder, steps = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[2]) / "checkpoints" / "last.ckpt"
if "fails" in folder.name: print("Out of time at step 3"); sys.exit("error: no such luck")
if "late" in folder.name: sys.exit(75)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
steps.parent.mkdir(exist_ok=True)
done = int(steps.read_text()) if sys.argv[1] == "resume" else 0
while done < 12:
    done += 1
    steps.write_text(str(done))
    print(f"Epoch 0:  {done}%", flush=True)
    if stop: sys.exit(1)
    time.sleep(0.05)
(folder / "metrics.json").write_text(json.dumps({"step": done, "val/accuracy": 0.5, "val/accuracy_60": 0.5}))
data = "source: arrow, root: data, arrow: {distance: adjacent}, resolutions: [84]"
(folder / "config.yaml").write_text("{model: {vit: {image_size: 60}}, data: {" + data + "}}")
"""


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Children that count instead of training, and keep the same contract."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)

    def command(self, run):
        return [str(script), "resume" if self.state(run) == "begun" else "fit", str(self.out / run.name)]

    monkeypatch.setattr(SweepRunner, "command", command)


@pytest.fixture
def when():
    """A function that calls another one once a file is there, and does not outlive its test."""
    over = threading.Event()
    threads = []

    def start(path: Path, call) -> None:
        def watch():
            while not path.exists():
                if over.wait(0.01):
                    return
            call()

        threads.append(threading.Thread(target=watch, daemon=True))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join()


def summary(out: Path) -> list[dict[str, str]]:
    with (out / "summary.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_status_after_sigterm(tmp_path, faked, when):
    when(tmp_path / "out" / "shallow-seed0" / "checkpoints" / "last.ckpt", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run_sweep(write_sweep(tmp_path, axes=None, seeds=[0]))[0] == 143


@pytest.mark.slow
def test_a_sweep_in_a_job_is_queued_again_once(tmp_path, faked, when, queued):
    """By SLURM's warning, after each run has ended its step."""
    path, out = write_sweep(tmp_path, axes=None, seeds=[0, 1]), tmp_path / "out"
    when(out / "shallow-seed1" / "checkpoints" / "last.ckpt", lambda: os.kill(os.getpid(), signal.SIGUSR1))
    assert run_sweep(path, "--jobs", "2")[0] == 75
    assert queued() == ["requeue", "7"]
    begun = [int(path.read_text()) for path in out.glob("*/checkpoints/last.ckpt")]
    assert 1 <= len(begun) <= 2  # the other one may not have ended its first step
    assert max(begun) < 12
    assert run_sweep(path, "--jobs", "2")[0] == 0
    assert queued() == ["requeue", "7"]


@pytest.mark.slow
def test_sweep_resumes_after_ctrl_c(tmp_path, faked, capsys, when):
    """Ctrl-C in the middle: what was begun is resumed where it was, what was finished is skipped."""
    path = write_sweep(tmp_path, seeds=[0])
    out = tmp_path / "out"
    when(out / "linear-lf-seed0" / "checkpoints" / "last.ckpt", lambda: os.kill(os.getpid(), signal.SIGINT))
    status, _ = run_sweep(path, "--jobs", "2")
    assert status == 130
    assert f"Continue with: python -m train.sweep {path}" in capsys.readouterr().out
    begun = [int(p.read_text()) for p in out.glob("*/checkpoints/last.ckpt")]
    assert begun  # its children ended a step and were not killed, and no further one was started
    assert max(begun) < 12
    assert len(begun) <= 2
    assert not list(out.glob("*/metrics.json"))
    status, _ = run_sweep(path, "--jobs", "3", "--only", "attention=linear")
    output = capsys.readouterr().out
    assert status == 0
    assert output.count("resumed") == len(begun)
    assert [row["run"] for row in summary(out)] == ["linear-plain-seed0", "linear-lf-seed0"]
    assert run_sweep(path, "--jobs", "3")[0] == 0
    output = capsys.readouterr().out
    assert output.count(": started") == 3
    assert "resumed" not in output
    rows = summary(out)
    assert [(row["model"], row["attention"], row["locality"], row["seed"], row["step"]) for row in rows] == [
        (f"{a}-{b}", a, b, "0", "12") for a in ("linear", "softmax") for b in ("plain", "lf")
    ] + [("shallow", "", "", "0", "12")]
    assert f"python -m eval resolution --checkpoint {out}/*/checkpoints/last.ckpt --resolutions 60 84" in output
    assert "python -m eval locality" not in output  # the stand-ins' configurations have none
    assert run_sweep(path)[0] == 0  # nothing to do
    assert ": started" not in capsys.readouterr().out


@pytest.mark.slow
def test_second_signal_kills(tmp_path, faked, monkeypatch, when):
    """Children that do not listen."""
    (tmp_path / "fake.py").write_text(FAKE.replace("stop.append(1)", "None").replace("12", "10000"))
    out = tmp_path / "out"

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    when(out / "shallow-seed0" / "checkpoints" / "last.ckpt", twice)
    start = time.monotonic()
    assert run_sweep(write_sweep(tmp_path, axes=None, seeds=[0]))[0] == 130
    assert time.monotonic() - start < 30


def test_locked_run_is_left_alone(tmp_path, faked, capsys):
    path, folder = write_sweep(tmp_path, axes=None, seeds=[0, 1]), tmp_path / "out" / "shallow-seed0"
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_sweep(path)[0] == 1
    output = capsys.readouterr().out
    assert "shallow-seed0: left to another process" in output
    assert "1 of 2 runs are finished" in output
    assert not (folder / "metrics.json").exists()
    assert run_sweep(path)[0] == 0


def test_locks_without_flock_name_their_process(config, tmp_path, faked, capsys, monkeypatch):
    """They are files, which the crash of a machine leaves."""

    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    path, folder = write_sweep(tmp_path, axes=None, seeds=[0, 1]), tmp_path / "out" / "shallow-seed0"
    folder.mkdir(parents=True)
    (folder / "lock").write_text("123\nnode7\n")
    assert run_sweep(path)[0] == 1
    output = capsys.readouterr().out
    named = f"The lock is the file {folder / 'lock'}, of process 123 on machine node7: delete it if"
    assert f"left to another process, which trains it. {named}" in output
    assert "1 of 2 runs are finished" in output
    assert not (folder.parent / "shallow-seed1" / "lock").exists()
    assert named in fails(["fit", "--config", str(config), "--run_dir", str(folder)], capsys)
    (folder / "lock").unlink()
    assert run_sweep(path)[0] == 0


@pytest.mark.slow
def test_lock_outlives_the_runner(tmp_path, faked):
    (tmp_path / "fake.py").write_text(FAKE.replace("0.05", "0.2"))
    plan = read_sweep(write_sweep(tmp_path, axes=None, seeds=[0]))
    job = SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, []).start(plan.runs[0])
    job.release()  # as the end of this process would
    assert SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, []).start(plan.runs[0]) is None
    job.process.kill()
    job.process.wait()
    again = SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, []).start(plan.runs[0])
    again.process.kill()
    again.process.wait()


def test_failed_run_does_not_stop_others(tmp_path, faked, capsys):
    path = write_sweep(tmp_path, axes=None, models={"fails": {}, "late": {}, "works": {}}, seeds=[0])
    assert run_sweep(path)[0] == 1
    output = capsys.readouterr().out
    assert "fails-seed0: FAILED (status 1)" in output
    assert "late-seed0: out of time; the same command continues it" in output
    assert output.count("FAILED") == output.count("out of time") == 1
    assert "error: no such luck" in output
    assert "works-seed0: finished" in output
    assert [row["run"] for row in summary(tmp_path / "out")] == ["works-seed0"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("recipe", "recipe: ema 0.9 then, 0.5 now"),
        ("overrides", "overrides: model.vit.depth 1 then, 3 now"),
        ("arguments", "arguments: none then, ['--trainer.max_epochs', '7'] now"),
    ],
)
def test_changed_settings_are_refused(tmp_path, faked, change, text, capsys):
    path, options = write_sweep(tmp_path, axes=None, seeds=[0]), []
    assert run_sweep(path)[0] == 0
    if change == "recipe":
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**TINY, "ema": 0.5}))
    elif change == "overrides":
        write_sweep(tmp_path, axes=None, seeds=[0], models={"shallow": {"model.vit.depth": 3}})
    else:
        options = ["--", "--trainer.max_epochs", "7"]
    assert run_sweep(path, *options)[0] == 2
    error = capsys.readouterr().err
    assert f"was begun with other settings ({text}; see" in error, error


@pytest.mark.slow
def test_sweep_resumes_real_training(tmp_path, capsys, when):
    """The arrow task in 20 steps, stopped after the first checkpoint; then also its last moment, after the last."""
    path, folder = write_sweep(tmp_path, axes=None, seeds=[5]), tmp_path / "out" / "shallow-seed5"
    options = ["--trainer.max_epochs", "2", "--data.resolutions", "[]", "--trainer.logger", "false"]
    plan = read_sweep(path)
    when(folder / "checkpoints" / "last.ckpt", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        cli.run(SweepRunner(plan, plan.runs, tmp_path / "out", 1, 1, options).command(plan.runs[0])[2:])
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] < 20
    assert not (folder / "metrics.json").exists()
    assert run_sweep(path, "--", *options)[0] == 0
    log = (folder / "log.txt").read_text()
    assert f"python -m train resume {folder}" in log
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["step"] == 20
    assert 0 <= metrics["val/accuracy"] == metrics["val/accuracy_60"] <= 1
    assert summary(tmp_path / "out")[0]["val/loss_60"] == str(metrics["val/loss_60"])
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["vit"]["depth"] == 1
    capsys.readouterr()
    (folder / "metrics.json").unlink()
    cli.run(["resume", str(folder)])
    assert json.loads((folder / "metrics.json").read_text()) == metrics  # validated again
    assert run_sweep(path, "--", *options)[0] == 0
    assert "| shallow" in capsys.readouterr().out


def test_jobs_share_out_gpus(tmp_path, monkeypatch):
    plan = read_sweep(write_sweep(tmp_path))
    one = SweepRunner(plan, plan.runs, tmp_path / "out", 3, 1, [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command = one.command(plan.runs[0])
    assert [one.device(slot, command)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert one.device(1, command) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert one.device(0, [*command, "--trainer.devices", "2"]) == {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert one.device(0, command) == {}
