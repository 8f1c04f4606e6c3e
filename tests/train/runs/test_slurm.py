"""Jobs of SLURM: a warning ends the step first, and the same command again is the same run."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment

from tests.helpers.runs import assert_same_weights, fails, fit
from tests.helpers.training import last
from train import cli, sweep
from train.callbacks.checkpoints import StepSeed
from train.checkpoint_file import read_checkpoint
from train.runs import slurm
from train.runs.folder import OUT_OF_TIME

pytestmark = pytest.mark.slow

SHORT = ["--ema", "0", "--trainer.logger", "false", "--data.workers", "0", "--data.train_size", "32"]
SHORT += ["--data.resolutions", "[]", "--trainer.max_epochs", "2"]


@pytest.fixture(scope="module")
def whole_job(config, tmp_path_factory):
    """The run that no job was."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    fit(config, run, *SHORT)
    return run


@pytest.mark.parametrize(("step", "every"), [(2, "0"), (4, "1")])  # 4 is the last step of an epoch
def test_a_requeued_job_continues_its_run(config, whole_job, tmp_path, monkeypatch, queued, step, every):
    more = ["--checkpoint_every", every]
    begin = StepSeed.on_train_batch_start

    def warn(self, trainer, module, *others):
        begin(self, trainer, module, *others)
        if trainer.global_step == step - 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(StepSeed, "on_train_batch_start", warn)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        fit(config, tmp_path / "run", *SHORT, *more)
    assert queued() == ["requeue", "7"]
    assert read_checkpoint(last(tmp_path / "run"))["global_step"] == step
    monkeypatch.setattr(StepSeed, "on_train_batch_start", begin)
    fit(config, tmp_path / "run", *SHORT, *more)
    assert assert_same_weights(whole_job, tmp_path / "run") == 8
    with pytest.raises(ValueError, match="holds a run already"):  # another command is another run
        fit(config, tmp_path / "run", *SHORT, *more, "--trainer.max_epochs=3")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_warning_before_the_training_queues_the_job_again(config, monkeypatch, queued, rank):
    """It ended the job for good, as an unhandled signal does. One process of several queues it."""
    monkeypatch.setenv("SLURM_PROCID", rank)
    monkeypatch.setattr(cli, "check_files", lambda arguments: os.kill(os.getpid(), signal.SIGUSR1))
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--config", str(config)])
    assert stop.value.code == OUT_OF_TIME
    assert queued() == (["requeue", "7"] if rank == "0" else [])
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_warning_before_the_first_run_of_a_sweep(config, tmp_path, monkeypatch, queued):
    monkeypatch.setattr(sweep, "check_folder", lambda out, path: os.kill(os.getpid(), signal.SIGUSR1))
    with pytest.raises(SystemExit) as stop:
        sweep.main([str(tmp_path / "sweep.yaml")])
    assert stop.value.code == OUT_OF_TIME
    assert queued() == ["requeue", "7"]


def test_folder_of_a_job(queued, monkeypatch):
    assert slurm.run_folder("fit a") == slurm.run_folder("fit a") != slurm.run_folder("fit b")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert slurm.job() == "5_2"


def test_a_job_by_hand_is_none(queued, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS")  # sbatch without -n
    assert (slurm.job(), slurm.requeue_signal([])) == ("7", signal.SIGUSR1)
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_NAME", "bash")  # of srun --pty bash; salloc has `interactive`
        assert slurm.job() is slurm.run_folder("fit a") is slurm.requeue_signal([]) is None
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 0)  # a terminal within a job, as Jupyter's
    assert slurm.job() is None


def test_a_sweep_queues_its_job_again_itself(queued, monkeypatch):
    monkeypatch.setenv("PERFORMER_STRING_LOCK", "runs/sweep/model-seed0/lock")  # as in its runs
    slurm.requeue()
    assert not queued()


@pytest.mark.parametrize("in_a_job", [True, False])
def test_torchrun_in_a_job_is_warned_of(queued, monkeypatch, recwarn, in_a_job):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    if not in_a_job:
        monkeypatch.delenv("SLURM_JOB_ID")
    slurm.check_processes(SimpleNamespace(num_devices=8, num_nodes=1, world_size=8))
    assert ["srun --ntasks-per-node=8" in str(each.message) for each in recwarn] == [True] * in_a_job


def test_signal_of_a_job(queued):
    assert slurm.requeue_signal([]) == signal.SIGUSR1
    assert slurm.requeue_signal([SLURMEnvironment(requeue_signal=signal.SIGUSR2)]) == signal.SIGUSR2
    assert slurm.requeue_signal([SLURMEnvironment(auto_requeue=False)]) is None


@pytest.mark.parametrize(("devices", "tasks"), [(2, 1), (1, 2)])
def test_every_device_needs_a_task(config, tmp_path, monkeypatch, queued, capsys, devices, tasks):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(tasks))
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    strategy = ["--trainer.strategy", "ddp"] if devices > 1 else []
    with pytest.raises(ValueError, match=f"{tasks} process.*srun --ntasks-per-node={devices} "):
        fit(config, tmp_path / "run", *SHORT, "--trainer.devices", str(devices), *strategy)
    monkeypatch.setenv("SLURM_NTASKS", "2")  # of srun -n 2
    assert "--ntasks-per-node=2" in fails(["fit", "--config", str(config), "--run_dir", "run", *SHORT], capsys)
