"""The command line: its list of evaluations, lazy imports, and errors in one message."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from eval.cli import build_parser, main, parse_arguments
from eval.evaluations import EVALUATIONS, Command, Entry
from tests.helpers.checkpoints import read, save
from tests.helpers.pages import REPOSITORY


def test_every_evaluation_says_its_columns():
    """And its figure is made by the report that `eval plot` loads."""
    for name, entry in EVALUATIONS.items():
        evaluation = entry.load()
        assert evaluation.description, name
        if isinstance(evaluation, Command):
            with pytest.raises(ValueError, match="draws no figure"):
                entry.load_report()
        else:
            assert "Columns:" in evaluation.description, name
            assert entry.load_report() is evaluation.shown, name


def test_reports_need_no_torch_and_a_figure_is_drawn_again(tmp_path):
    """`eval plot` draws with them alone."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from eval.cli import main\n"
        "from eval.evaluations import EVALUATIONS\n"
        "commands = 'command', 'redraw', 'papers.report'\n"
        "reports = [entry for entry in EVALUATIONS.values() if not entry.module.endswith(commands)]\n"
        "print(len([entry.load_report() for entry in reports]))\n"
        "main(sys.argv[1:])"
    )
    results = REPOSITORY / "experiments" / "arrow" / "demo" / "resolution.csv"
    command = [sys.executable, "-c", code, "plot", str(results), "--out", str(tmp_path), "--format", "pdf"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == len(EVALUATIONS) - 5  # export, features, table, report and plot
    assert (tmp_path / "resolution.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_a_call_imports_its_evaluation_alone_and_needs_no_backend_of_figures():
    """Figures are written and not shown, so that one that is not there does not matter."""
    code = (
        "import sys; from eval.cli import main\ntry: main(['plateau', '--help'])\nfinally: print(); print(*sys.modules)"
    )
    unknown = {**os.environ, "MPLBACKEND": "unknown"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=unknown, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
    modules = set(done.stdout.splitlines()[-1].split())
    assert {entry.module for entry in EVALUATIONS.values()} & modules == {"eval.accuracy.plateau"}
    assert "matplotlib" in modules


def test_help_of_an_evaluation_says_what_it_answers(capsys):
    with pytest.raises(SystemExit):
        main(["resolution", "--help"])
    said = capsys.readouterr().out
    assert "How accurate are models at resolutions" in said
    assert "--resolutions" in said
    with pytest.raises(SystemExit):
        main(["variance", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "hyperbolic FAVOR+                     sqrt((e^s + e^-s - 2) / m)" in lines  # a formula in a line
    assert "resolution" in build_parser().format_help()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=str)
def test_the_list_of_evaluations_has_a_line_for_each(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    assert (stop.value.code, said.err) == (0, "")
    lines = said.out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(EVALUATIONS)
    assert max(map(len, lines)) <= 105
    assert "  resolution  accuracy per resolution, with 95 % intervals, beside the majority baseline" in lines
    assert "Your own:" not in lines


def test_an_evaluation_of_ones_own_is_in_the_list(monkeypatch, capsys):
    monkeypatch.setitem(EVALUATIONS, "calibration", Entry("mine", "calibration error"))
    with pytest.raises(SystemExit):
        main([])
    assert "Your own:\n  calibration calibration error\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["resolutoin", "a"],
            "error: unknown evaluation 'resolutoin'. Did you mean 'resolution'? python",
        ),
        (["xyzzy"], "error: unknown evaluation 'xyzzy'. Known: resolution, table, report,"),
        (["FOLDER"], "It is a path: the evaluation comes before it, as in python -m eval resolution FOLDER. python"),
        (
            ["--checkpoint", "a"],
            "error: the name of an evaluation comes first, and not --checkpoint. python",
        ),
        (
            ["resolution"],
            "required: RUN. RUN is a run's folder (for its last checkpoint), a checkpoint, or a published",
        ),
        (["predict"], "usage: python -m eval predict [options] RUN IMAGE|FOLDER [IMAGE|FOLDER ...]\n"),
        (["resolution", "--split", "tset", "a"], "argument --split: invalid choice: 'tset'"),
        (
            ["resolution", "FOLDER"],
            "It is no folder of a run, which has checkpoints/last.ckpt or",
        ),
        (["resolution", "FOLDER/begun"], "It is the folder of a run without a checkpoint: it was stopped before the"),
        (["resolution", "FOLDER/no"], "there is no checkpoint FOLDER/no. Give the folder of a run, a checkpoint, or"),
        (["compare", "one"], "there is no checkpoint one. Did you mean runs/one?"),
    ],
    ids=str,
)
def test_what_was_given_and_what_was_expected(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "folder" / "begun" / "checkpoints").mkdir(parents=True)
    save(tmp_path / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([argument.replace("FOLDER", "folder") for argument in arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message.replace("FOLDER", "folder") in error or message in error
    assert len(error.splitlines()) <= 3


def test_runs_that_are_not_finished(tmp_path, capsys):
    for name, finished in (("one", False), ("two", True)):
        path = save(tmp_path / name)
        torch.save({**torch.load(path, weights_only=True), "global_step": 7}, path)
        (tmp_path / name / "config.yaml").touch()
        if finished:
            (tmp_path / name / "metrics.json").touch()
    main(["resolution", str(tmp_path / "one"), str(tmp_path / "two"), "--resolutions", "60", "--images", "4"])
    said = "The run one is not finished: its checkpoint of step 7 is evaluated.\n"
    assert capsys.readouterr().err == said


def test_splits_by_default():
    """All evaluations are on the same images, and their results say which."""
    arguments = ["--checkpoint", "one.ckpt", "--resolutions", "84"]
    splits = {name: parse_arguments([name, *arguments]).split for name in ("resolution", "intervene", "estimator")}
    assert splits == {"resolution": "test", "intervene": "test", "estimator": "test"}


def test_former_name_of_a_feature_map():
    for name in ("length", "decay"):
        assert parse_arguments([name, "--feature-map", "relu"]).feature_map == "arc-cosine"


def test_former_name_of_an_evaluation():
    assert parse_arguments(["focusing", "--sides", "3"]).command == "decay"


def test_device_of_an_evaluation_on_the_cpu(capsys):
    with pytest.raises(SystemExit):
        main(["redundancy", "--device", "cuda"])
    assert "unrecognized arguments: --device cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("length --bacth-size 2", "unrecognized arguments: --bacth-size 2. Did you mean '--batch-size'?"),
        ("length --tokens 64 --xyz", "unrecognized arguments: --xyz."),
        ("plot one.csv --titel=x", "unrecognized arguments: --titel=x. Did you mean '--title'?"),
        ("plot one.csv --format png x.csv", "invalid choice: 'x.csv'"),
    ],
)
def test_misspelt_options(typed, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(typed.split())
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert f"usage: python -m eval {typed.split()[0]}" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_without_a_gpu(tmp_path, capsys):
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--device", "cuda"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--device cuda: torch sees no such device here. Use --device cpu, or auto." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resolutions", "sixty"], "or height x width, like 96x128, not 'sixty'"),
        (["--resolutions", "0"], "not '0'"),
        (["--resolutions", "90"], "90 x 90 pixels is not divisible into patches of 12 x 12"),
        (["--resolutions", "36"], "60 pixels or more, not 36"),
        (["--resolutions", "60", "--positions", "stretch"], "invalid choice: 'stretch'"),
        (["--resolutions", "60", "--images", "-4"], "a number of 0 or more is needed here, not '-4'"),
        (["--resolutions", "60", "--device", "gpu"], "like cuda:1 or mps, not 'gpu'"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["resolution", "--checkpoint", str(save(tmp_path / "one")), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one" / "results").exists()


def test_one_model_writes_beside_its_run(tmp_path):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--images", "10"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["images"] == "10"


def test_output_folder_that_cannot_be_written_to(tmp_path, capsys):
    """Known before anything is measured."""
    (tmp_path / "file").write_text("")
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60"]
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(tmp_path / "file" / "in")])
    assert "file is not a folder that can be written to" in capsys.readouterr().err
