"""The runs of a sweep as processes: started, resumed, stopped, and summed up in one table."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from tqdm import tqdm

from train.fields import check_fields, named, undone
from train.files import HELD, LOCK, METRICS, latest_checkpoint, write_aside
from train.plan import Plan, Run, read_yaml

SETTINGS, LOG, SUMMARY = "sweep.json", "log.txt", "summary.csv"


@dataclass
class Job:
    """A run in training."""

    run: Run
    process: subprocess.Popen[bytes]
    lock: IO[str]
    slot: int  # the least that was free
    started: float = field(default_factory=time.monotonic)


class Sweep:
    """The runs of a sweep in a folder, at most `jobs` of them in training.

    Args:
        plan: what the sweep consists of.
        runs: those of it to train.
        out: where each run has its folder.
        jobs: trainings at a time.
        threads: of each.
        extra: arguments of `python -m train fit` for all.
    """

    def __init__(self, plan: Plan, runs: Sequence[Run], out: Path, jobs: int, threads: int, extra: Sequence[str]):
        if jobs < 1 or threads < 1:
            raise ValueError(f"--jobs and --threads have to be positive, not {jobs} and {threads}.")
        check_fields(named(extra))
        if not runs:
            raise ValueError("no run meets all conditions of --only.")
        self.plan, self.runs, self.out, self.jobs, self.threads, self.extra = plan, runs, out, jobs, threads, extra
        self.recipe = read_yaml(plan.recipe)
        self.active: list[Job] = []
        self.signals = 0
        for run in runs:
            field = undone(run.overrides, extra)
            if field is not None:
                raise ValueError(
                    f"--{field} after -- would undo what the model {run.model} is named for. Leave it out, or train "
                    f"others by --only model=..."
                )
            self.check_settings(run)

    def settings(self, run: Run) -> dict[str, Any]:
        made = {
            "recipe": self.recipe,
            "overrides": dict(run.overrides),
            "seed": run.seed,
            "arguments": list(self.extra),
        }
        return dict(json.loads(json.dumps(made)))

    def check_settings(self, run: Run) -> None:
        """An error where the folder holds the same name with other settings: its result would pass for this one's."""
        path = self.out / run.name / SETTINGS
        if self.state(run) == "new" or not path.is_file():
            return
        before, now = json.loads(path.read_text()), self.settings(run)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{path.parent} was begun with other settings ({', '.join(changed)}; see {path}). Give those again, or "
                f"another --out."
            )

    def state(self, run: Run) -> str:
        """`finished`, `begun` or `new`."""
        folder = self.out / run.name
        if (folder / METRICS).is_file():
            return "finished"
        return "new" if latest_checkpoint(folder) is None else "begun"

    def command(self, run: Run) -> list[str]:
        folder = str(self.out / run.name)
        if self.state(run) == "begun":
            return ["-m", "train", "resume", folder]
        start = ["-m", "train", "fit", "--config", str(self.plan.recipe), "--run_dir", folder]
        return [*start, *run.arguments(), *self.extra]

    def start(self, run: Run) -> Job | None:
        """A process that trains it; None where it is finished, or another process has it."""
        folder = self.out / run.name
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
        try:  # the child inherits the lock, and holds it even when this process is killed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tqdm.write(f"{run.name}: left to another process, which trains it")
            lock.close()
            return None
        if self.state(run) == "finished":
            lock.close()
            return None
        command = self.command(run)
        with write_aside(folder / SETTINGS) as partial:
            partial.write_text(json.dumps(self.settings(run), indent=1) + "\n")
        own = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        own[HELD] = str((folder / LOCK).resolve())
        slot = min(set(range(self.jobs)) - {job.slot for job in self.active})
        with (folder / LOG).open("ab") as log:
            log.write(f"\npython {shlex.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **self.device(slot, command)},
                pass_fds=(lock.fileno(),),
                start_new_session=True,  # the terminal's Ctrl-C reaches this process only, which passes it on once
            )
        tqdm.write(f"{run.name}: {'resumed' if 'resume' in command else 'started'}")
        return Job(run, process, lock, slot)

    def device(self, slot: int, command: Sequence[str]) -> dict[str, str]:
        """A GPU for each job in turn, where there are several and the runs do not say which or how many they take."""
        chosen = "--trainer.devices" in " ".join(command) or "devices" in (self.recipe.get("trainer") or {})
        count = torch.cuda.device_count()
        if count < 2 or chosen:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        return {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % count]}

    def end(self, job: Job) -> None:
        job.lock.close()
        minutes = (time.monotonic() - job.started) / 60
        if self.state(job.run) == "finished":
            accuracy = metrics_of(self.out / job.run.name).get("val/accuracy")
            result = "" if accuracy is None else f", {100 * accuracy:.1f} % on validation images"
            tqdm.write(f"{job.run.name}: finished after {minutes:.1f} minutes{result}")
        elif not self.signals:
            folder = self.out / job.run.name
            tail = (folder / LOG).read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            if any(line.startswith("Out of time at step") for line in tail):
                tqdm.write(f"{job.run.name}: out of time; the same command continues it")
                return
            tqdm.write(f"{job.run.name}: FAILED (status {job.process.returncode}), see {folder / LOG}")
            tqdm.write("\n".join("    " + line for line in tail[-3:]))

    def asked_to_stop(self, number: int, frame: Any) -> None:
        self.signals += 1
        if self.signals == 1:
            tqdm.write("\nStopping: each run ends its step and saves; once more to stop at once.")
        for job in self.active:
            self.pass_on(job)

    def pass_on(self, job: Job) -> None:
        """The signals that came, as one to end its step and save, or, from the second on, one to end at once."""
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            if self.signals and job.process.returncode is None:
                os.killpg(job.process.pid, signal.SIGTERM if self.signals == 1 else signal.SIGKILL)

    def train(self) -> None:
        """Trains until all is finished, has failed, or a signal has come."""
        waiting = list(self.runs)
        before = {n: signal.signal(n, self.asked_to_stop) for n in (signal.SIGINT, signal.SIGTERM)}
        bar = tqdm(total=len(waiting), desc="runs", unit="run", disable=None)
        try:
            while self.active or (waiting and not self.signals):
                while waiting and len(self.active) < self.jobs and not self.signals:
                    job = self.start(waiting.pop(0))
                    if job is not None:
                        self.active.append(job)
                        self.pass_on(job)  # a signal may have come while it was started
                time.sleep(0.2 if self.active else 0)
                for job in [job for job in self.active if job.process.poll() is not None]:
                    self.active.remove(job)
                    self.end(job)
                    self.write_summary()
                bar.n = len(self.finished())
                bar.set_postfix_str("; ".join(progress(self.out / job.run.name, job.run.name) for job in self.active))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            bar.close()
            self.write_summary()

    def finished(self) -> list[Run]:
        return [run for run in self.runs if self.state(run) == "finished"]

    def write_summary(self) -> None:
        """The final metrics of every finished run of the whole sweep as CSV."""
        rows = []
        for run in (run for run in self.plan.runs if self.state(run) == "finished"):
            settings = self.out / run.name / SETTINGS
            named = {
                "run": run.name,
                "model": run.model,
                **{axis: run.choices.get(axis, "") for axis in self.plan.axes},
                "arguments": shlex.join(json.loads(settings.read_text())["arguments"] if settings.is_file() else []),
            }
            rows.append({**named, "seed": run.seed, **metrics_of(self.out / run.name)})
        if not rows:
            return
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with write_aside(self.out / SUMMARY) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


def metrics_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / METRICS).read_text()))


def progress(folder: Path, name: str) -> str:
    """The last epoch and share that a run's log tells of."""
    with (folder / LOG).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
        found = re.findall(rb"Epoch (\d+):\s+(\d+)%", log.read())
    return f"{name} epoch {int(found[-1][0])} {int(found[-1][1])}%" if found else name
