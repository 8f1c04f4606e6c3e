"""Training from the command line: what a run writes and logs, and what it leaves alone."""

from __future__ import annotations

import csv
import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eval.training_log import read_log
from tests.helpers.runs import fit
from tests.helpers.training import last
from train import cli
from train.checkpoint import load_trained
from train.checkpoint_file import read_checkpoint
from train.testing import measure_images

FIGURES = ["--figures_every", "1"]
pytestmark = pytest.mark.slow  # training runs


@pytest.mark.parametrize("option", [["--trainer.logger", "false"], ["--trainer.fast_dev_run", "true"]], ids=str)
def test_fit_without_logger(config, tmp_path, option):
    cli.run(["fit", "--config", str(config), "--trainer.max_epochs", "1", *option, "--run_dir", str(tmp_path / "run")])
    assert not list(tmp_path.rglob("events*"))
    fast = "fast_dev_run" in option[0]
    assert [path.name for path in tmp_path.rglob("config.yaml")] == ([] if fast else ["config.yaml"])
    assert not Path("config.yaml").exists()


def test_fit_in_mixed_precision(config, tmp_path):
    run = tmp_path / "bf16"
    bf16 = ["--trainer.precision", "bf16-mixed", "--trainer.max_epochs", "1"]
    cli.run(["fit", "--config", str(config), *bf16, "--run_dir", str(run)])
    weights = read_checkpoint(last(run))["current_model_state"]
    assert all(torch.isfinite(value).all() and value.dtype == torch.float32 for value in weights.values())


def test_end_of_a_run_without_validation(config, tmp_path, caplog):
    """It was said to be finished already."""
    caplog.set_level("INFO")
    fit(config, tmp_path / "run", "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0")
    assert f"{tmp_path / 'run'}: done, step 10." in caplog.text
    assert "is finished" not in caplog.text


def test_files_and_curves_of_a_run(config, tmp_path):
    whole = tmp_path / "run"
    fit(config, whole, *FIGURES)
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert yaml.safe_load((whole / "config.yaml").read_text())["trainer"]["devices"] == 1  # whatever the machine has
    assert not (whole / "hparams.yaml").exists()  # of Lightning's logger, and empty
    events = EventAccumulator(str(whole), size_guidance={"tensors": 0, "images": 0}).Reload()
    scalars = set(events.Tags()["scalars"])
    assert scalars >= {
        "train/loss",
        "train/gradient_norm",
        "train/images_per_second",
        "train/peak_memory_mib",
        "train/learning_rate",
        "val/accuracy",
        "val/accuracy_84",
        "val/loss_60",
        "vit_estimator/total_variation_to_softmax",
        "vit_estimator/layer_1",
    }
    assert not {"val/accuracy_60", "epoch"} & scalars  # the first is val/accuracy
    assert sorted({tag.partition("/")[0] for tag in scalars})[:2] == ["train", "val"]  # TensorBoard opens two groups
    assert set(events.Tags()["images"]) == {"vit_figures/attention", "vit_figures/frequencies"}
    assert any(tag.startswith("vit_configuration") for tag in events.Tags()["tensors"])
    hparams = [
        p for p in whole.rglob("events*") if "_hparams_" in str(EventAccumulator(str(p)).Reload().summary_metadata)
    ]
    (content,) = (str(EventAccumulator(str(p)).Reload().summary_metadata) for p in hparams)
    for name in ("data.batch_size", "data.source", "data.augment", "epochs", "optim.mixup", "vit.drop_path"):
        assert name in content
    for name in ("optim.warmup", "vit.pool", "data.std"):
        assert name not in content  # as by default


def test_learning_rates_of_several_groups(config, tmp_path):
    """One curve for all weights of one rate, and another one, by name, for those that have their own."""
    rate, steps = ["--model.optim.encoding_lr", "0.01"], ["--trainer.limit_train_batches", "3"]
    fit(config, tmp_path / "run", *rate, *steps, "--trainer.max_epochs", "1")
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    names = [tag for tag in events.Tags()["scalars"] if "learning_rate" in tag]
    assert names == ["train/learning_rate", "train/learning_rate_encoding"]
    common, own = ([event.value for event in events.Scalars(name)] for name in names)
    assert len(common) == 3
    assert own == pytest.approx([10 * value for value in common])


def test_custom_logger_gets_all_numbers(config, tmp_path, monkeypatch):
    """And all settings.

    A logger that is named takes the place of TensorBoard, which alone has the figures; an added one does not.
    """
    custom = ["--trainer.logger=lightning.pytorch.loggers.CSVLogger", f"--trainer.logger.save_dir={tmp_path / 'csv'}"]
    short = ["--trainer.max_epochs", "1", "--model.vit.locality", "gaussian", *FIGURES]
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")  # else Lightning would read the nodes of the job
    cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *short, *custom])
    with next((tmp_path / "csv").rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    for name in (
        "vit_estimator/total_variation_to_softmax",
        "vit_estimator/layer_1",
        "vit_locality_sigma/layer_0_head_1",
    ):
        (value,) = [float(row[name]) for row in rows if row[name]]
        assert 0 < value < 10
    settings = yaml.safe_load(next((tmp_path / "csv").rglob("hparams.yaml")).read_text())
    assert settings["vit"]["width"] == settings["model"]["vit"]["width"] == 16  # the first by Lightning
    found = settings["data"]["batch_size"], settings["trainer"]["max_epochs"], settings["ema"], settings["processes"]
    assert found == (8, 1, 0.9, 1)
    (line,) = map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    assert (line["host"], line["slurm_job"]) == (socket.gethostname(), "12")
    assert not list((tmp_path / "run").glob("events*"))
    custom[0] = custom[0].replace("=", "+=")
    short = short[: -len(FIGURES)]
    cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "two"), *short, *custom])
    assert len(list((tmp_path / "csv").rglob("metrics.csv"))) == 2
    cli.run(["resume", str(tmp_path / "two"), "--trainer.max_epochs", "2"])
    assert len(list((tmp_path / "two").glob("events*"))) >= 2


def test_learned_decay_is_logged_by_head(config, tmp_path):
    run = tmp_path / "local"
    focused = ["--model.vit.locality", "gaussian", "--model.vit.locality_options", "{sigma: 1.5}"]
    cli.run(["fit", "--config", str(config), "--trainer.max_epochs", "1", *focused, *FIGURES, "--run_dir", str(run)])
    events = EventAccumulator(str(run)).Reload()
    learned = load_trained(last(run)).classifier.vit.localities()
    for layer, locality in enumerate(learned):
        for name, values in (("sigma", locality.sigma()), ("amplitude", locality.amplitude())):
            for head, value in enumerate(values.tolist()):
                assert events.Scalars(f"vit_locality_{name}/layer_{layer}_head_{head}")[-1].value == pytest.approx(
                    value
                )
    assert learned[0].sigma()[0] != 1.5


def test_validate_leaves_run_unchanged(config, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    cli.run(["validate", "--config", str(config), "--ckpt_path", str(last(run))])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before  # its curves too
    cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    assert read_checkpoint(last(run))["global_step"] == 40


def test_resume_from_best_without_last(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    last(run).unlink()
    cli.run(["resume", str(run), "--trainer.max_epochs", "4"])
    assert read_checkpoint(last(run))["global_step"] == 40


def test_refused_resume_leaves_config(config, tmp_path):
    run = tmp_path / "run"
    cli.run(["fit", "--config", str(config), "--trainer.max_steps", "15", "--run_dir", str(run)])
    before = (run / "config.yaml").read_text()
    with pytest.raises(ValueError, match="make another one"):
        cli.run(["resume", str(run), "--trainer.max_steps", "20", "--data.batch_size", "4"])
    assert (run / "config.yaml").read_text() == before
    cli.run(["resume", str(run), "--trainer.max_steps", "20"])
    assert read_checkpoint(last(run))["global_step"] == 20
    after = yaml.safe_load((run / "config.yaml").read_text())
    assert after["trainer"]["max_steps"] == 20
    assert after["ckpt_path"] is None  # a recipe for others still


def test_fit_from_another_run_does_not_overwrite(config, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for command in (["fit", "--config", str(config), "--ckpt_path", str(last(whole))], ["resume", str(whole)]):
        with pytest.raises(ValueError, match="holds a run already"):
            cli.run([*command, "--run_dir", str(run)])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_validation_after_last_epoch(config, tmp_path):
    arguments = [
        "--trainer.max_epochs",
        "3",
        "--trainer.check_val_every_n_epoch",
        "2",
        "--run_dir",
        str(tmp_path / "run"),
    ]
    cli.run(["fit", "--config", str(config), *arguments])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["step"] == 30
    events = EventAccumulator(str(tmp_path / "run")).Reload().Scalars("val/accuracy")
    assert events[-1].step == 29  # counted from 0


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_fit_in_other_precisions(config, tmp_path, precision):
    arguments = ["--trainer.precision", precision, "--trainer.max_epochs", "1", "--run_dir", str(tmp_path / "run")]
    cli.run(["fit", "--config", str(config), *arguments])
    assert read_checkpoint(last(tmp_path / "run"))["global_step"] == 10


def test_test_images_are_watched_and_choose_nothing(config, tmp_path, monkeypatch, capsys):
    """Weights and the best epoch are those of a run without; each validation logs the accuracy on the test images."""
    monkeypatch.setattr("train.callbacks.progress.BETWEEN", 0.0)
    runs = [tmp_path / name for name in ("plain", "watched")]
    for run, more in zip(
        runs, ([], ["--data.watch_test", "true", "--trainer.enable_progress_bar", "true"]), strict=True
    ):
        cli.run(["fit", "--config", str(config), "--run_dir", str(run), *more])
    plain, watched = (read_log(run) for run in runs)
    assert "test/accuracy" not in plain
    assert watched["test/accuracy"].steps == watched["val/accuracy"].steps == plain["val/accuracy"].steps
    assert watched["val/accuracy"].values == plain["val/accuracy"].values
    trained = load_trained(last(runs[1]))
    right = measure_images(trained, trained.data.sizes()[0], "test", 0, torch.device("cpu")).right
    assert watched["test/accuracy"].values[-1] == pytest.approx(float(right.float().mean()))
    for name in ("best.ckpt", "last.ckpt"):
        weights = [read_checkpoint(run / "checkpoints" / name)["state_dict"] for run in runs]
        assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not any(name.startswith("test/") for name in json.loads((runs[1] / "metrics.json").read_text()))
    assert "Validation, test images: 100%" in capsys.readouterr().out


def test_repeated_resolution_validates_once(config, tmp_path):
    arguments = ["--data.resolutions", "[60, 84, 84]", "--trainer.max_epochs", "1", "--run_dir", str(tmp_path / "run")]
    cli.run(["fit", "--config", str(config), *arguments])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert sorted(name for name in metrics if "accuracy_" in name) == ["val/accuracy_60", "val/accuracy_84"]
