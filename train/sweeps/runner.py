"""Train the runs of a sweep as processes: start, resume and stop them, and summarise their metrics."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from tqdm import tqdm

from performer_string.utils.files import read_json
from train.command.recipe import check_fields, current_arguments, find_conflict, options_of
from train.runs import slurm
from train.runs.folder import LOCK, LOCK_VARIABLE, METRICS, OUT_OF_TIME, latest_checkpoint
from train.runs.lock import held_by, take_lock
from train.runs.recorded import PLACE
from train.sweeps.file import Run, Sweep
from train.sweeps.settings import SETTINGS, check_settings, current_settings, image_place, write_settings
from train.sweeps.summary import progress_of, write_summary
from train.targets import main_results, result_text
from train.utils.progress import progress
from train.utils.yaml_file import read_yaml

LOG = "log.txt"


@dataclass
class Job:
    """A run in training."""

    run: Run
    process: subprocess.Popen[bytes]
    release: Callable[[], None]  # gives up its lock
    slot: int  # lowest free index below `jobs`
    started: float = field(default_factory=time.monotonic)


class SweepRunner:
    """Trains the runs of a sweep in a folder, at most `jobs` at a time.

    Args:
        sweep: the sweep.
        runs: runs to train.
        out: folder of the runs' folders.
        jobs: number of simultaneous training runs.
        threads: number of threads of each training run.
        extra: arguments of `python -m train fit` for all runs.
        listing: whether runs are only listed, so that existing runs with other settings are no error.

    Raises:
        ValueError: incompatible arguments, or an existing run with other settings.
    """

    def __init__(
        self,
        sweep: Sweep,
        runs: Sequence[Run],
        out: Path,
        jobs: int,
        threads: int,
        extra: Sequence[str],
        listing: bool = False,
    ):
        if jobs < 1 or threads < 1:
            raise ValueError(f"--jobs and --threads must be positive, not {jobs} and {threads}.")
        if not runs:
            raise ValueError("no run meets all conditions of --only.")
        self.sweep, self.runs, self.out, self.jobs, self.threads = sweep, runs, out, jobs, threads
        self.extra, self.recipe = current_arguments(extra), read_yaml(sweep.recipe)
        check_fields(name for name, _ in options_of(self.extra))
        self.signals, self.stopped_by, self.active = 0, 0, list[Job]()  # number of signals, first signal, training runs
        for run in runs:
            conflict = find_conflict(run.overrides, self.extra)
            if conflict is not None:
                raise ValueError(
                    f"--{conflict} after -- would undo what the model {run.model} is named for. Leave it out, or train "
                    f"others by --only model=..."
                )
            if not listing and self.state(run) != "new":
                check_settings(self.folder(run), self.settings(run))

    def folder(self, run: Run) -> Path:
        """Return the folder of a run."""
        return self.out / run.name

    def state(self, run: Run) -> str:
        """Return the state of a run, `finished`, `begun` or `new`."""
        if (self.folder(run) / METRICS).is_file():
            return "finished"
        return "new" if latest_checkpoint(self.folder(run)) is None else "begun"

    def finished(self) -> list[Run]:
        """Return the runs that are finished."""
        return [run for run in self.runs if self.state(run) == "finished"]

    def metrics(self, run: Run) -> dict[str, Any]:
        """Return the final metrics of a finished run."""
        return dict(read_json(self.folder(run) / METRICS))

    def settings(self, run: Run) -> dict[str, Any]:
        """Return all settings that determine the result of a run."""
        settings = {"recipe": self.recipe, "overrides": dict(run.overrides), "arguments": self.extra, "seed": run.seed}
        return current_settings(settings)

    def command(self, run: Run) -> list[str]:
        """Return the arguments for Python that start or resume a run."""
        folder = str(self.folder(run))
        if self.state(run) == "begun":
            place = image_place({"overrides": run.overrides, "arguments": self.extra})  # the images may have been moved
            return ["-m", "train", "resume", folder, *([] if place is None else [f"--{PLACE}", place])]
        return ["-m", "train", *self.fit_arguments(run)]

    def fit_arguments(self, run: Run) -> list[str]:
        """Return the arguments of `python -m train` that start a run."""
        start = ["fit", "--config", str(self.sweep.recipe), "--run_dir", str(self.folder(run))]
        return [*start, *run.arguments(), *self.extra]

    def start(self, run: Run) -> Job | None:
        """Start a process that trains a run; return None where it is finished or in training elsewhere."""
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        path = (folder / LOCK).resolve()
        try:  # the child inherits the lock, and keeps it if this process is killed
            release, descriptors = take_lock(path)
        except Timeout:
            tqdm.write(f"{run.name}: left to another process, which trains it.{held_by(path)}")
            return None
        if self.state(run) == "finished":
            release()
            return None
        command = self.command(run)
        write_settings(folder, self.settings(run))
        slot = min(set(range(self.jobs)) - {job.slot for job in self.active})
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))}
        environment |= {LOCK_VARIABLE: str(path), **self.device(slot, command)}
        with (folder / LOG).open("ab") as log:
            log.write(f"\npython {shlex.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C reaches only this process, which passes it on once
            )
        tqdm.write(f"{run.name}: {'resumed' if 'resume' in command else 'started'}")
        return Job(run, process, release, slot)

    def device(self, slot: int, command: Sequence[str]) -> dict[str, str]:
        """Return the environment variables that assign GPUs to jobs in turn, unless the runs choose their devices."""
        is_chosen = "--trainer.devices" in " ".join(command) or "devices" in (self.recipe.get("trainer") or {})
        count = torch.cuda.device_count()
        if count < 2 or is_chosen:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        return {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % count]}

    def end(self, job: Job) -> None:
        """Print the outcome of a run."""
        job.release()
        name, log = job.run.name, self.folder(job.run) / LOG
        if self.state(job.run) == "finished":
            main, values = main_results(self.metrics(job.run))
            result = f", {result_text(main, next(iter(values.values())))} on validation images" if values else ""
            tqdm.write(f"{name}: finished after {(time.monotonic() - job.started) / 60:.1f} minutes{result}")
        elif not self.signals:
            if job.process.returncode == OUT_OF_TIME:
                tqdm.write(f"{name}: out of time; the same command continues it")
            else:
                tail = log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
                tqdm.write(f"{name}: FAILED (status {job.process.returncode}), see {log}")
                tqdm.write("\n".join("    " + line for line in tail[-3:]))

    def receive(self, number: int, frame: Any) -> None:
        """Handle a signal: after the first each run finishes its step and saves, a second ends all at once.

        SLURM's warning is never the second: it may come to a job whose runs are already ending.
        """
        if number == signal.SIGUSR1 and self.signals:
            return
        self.signals += 1
        if self.signals == 1:
            self.stopped_by = number
            tqdm.write("\nStopping: each run ends its step and saves; once more to stop at once.")
        for job in self.active:
            self.pass_on(job)

    def pass_on(self, job: Job) -> None:
        """Send the received signals to a run."""
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            if self.signals and job.process.returncode is None:
                os.killpg(job.process.pid, signal.SIGTERM if self.signals == 1 else signal.SIGKILL)

    def train(self) -> None:
        """Train until all runs are finished or have failed, or until a signal; SLURM's warning requeues the job."""
        waiting, warning = list(self.runs), [] if slurm.job() is None else [signal.SIGUSR1]
        handlers = {n: signal.signal(n, self.receive) for n in (signal.SIGINT, signal.SIGTERM, *warning)}
        bar = progress(total=len(waiting), desc="runs", unit="run", leave=True)
        try:
            while self.active or (waiting and not self.signals):
                while waiting and len(self.active) < self.jobs and not self.signals:
                    job = self.start(waiting.pop(0))
                    if job is not None:
                        self.active.append(job)
                        self.pass_on(job)  # a signal may have arrived during the start
                time.sleep(0.2 if self.active else 0)
                for job in [job for job in self.active if job.process.poll() is not None]:
                    self.active.remove(job)
                    self.end(job)
                    self.write_summary()
                bar.n = len(self.finished())
                bar.set_postfix_str("; ".join(progress_of(self.folder(job.run)) for job in self.active))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            bar.close()
            self.write_summary()
        if self.stopped_by == signal.SIGUSR1:
            slurm.requeue()

    def status(self) -> int:
        """Return the exit status after a signal: 75 where the same command is to go on, as after SLURM's warning."""
        return OUT_OF_TIME if self.stopped_by == signal.SIGUSR1 else 128 + self.stopped_by

    def write_summary(self) -> None:
        """Write the final metrics of all finished runs of the whole sweep as CSV."""
        rows = []
        for run in (run for run in self.sweep.runs if self.state(run) == "finished"):
            path = self.folder(run) / SETTINGS
            arguments = read_json(path)["arguments"] if path.is_file() else []
            labels = {"run": run.name, "model": run.model, **{axis: run.label(axis) for axis in self.sweep.axes}}
            rows.append({**labels, "arguments": shlex.join(arguments), "seed": run.seed, **self.metrics(run)})
        write_summary(self.out, rows)
