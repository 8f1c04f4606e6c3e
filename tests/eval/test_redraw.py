"""Figures and tables: drawn again from CSV files, with labels and order, in every format."""

from __future__ import annotations

import argparse

import pytest

from eval.accuracy.predict_report import answers_in
from eval.cli import main
from eval.plotting.options import for_display
from eval.redraw import read_results
from eval.report import write_csv
from experiments.figures import ROOT
from train.data.sizes import Size

RESULT = {"resolution": 60, "accuracy": 50.0, "low": 40.0, "high": 60.0, "images": 9, "null": 10.0, "trained at": 60}


@pytest.fixture
def results(tmp_path):
    """Return a CSV file as it was written before columns were renamed and the split was in it."""
    rows = [{"model": f"{name}-seed{seed}", **RESULT} for name in ("a_b", "c") for seed in (0, 1)]
    path = tmp_path / "resolution.csv"
    write_csv(path, rows, ["command: python -m eval resolution --split val --checkpoint one"])
    return path


def test_old_results_are_read_with_types_and_split(results):
    evaluation, rows = read_results(results)
    assert evaluation == "resolution"
    assert rows[0]["resolution"] == Size(60, 60)
    assert rows[0]["accuracy"] == 50.0
    assert rows[0]["split"] == "val"
    assert rows[0]["majority baseline"] == 10.0


def test_names_of_classes_that_look_like_numbers_stay(tmp_path):
    path = tmp_path / "predict.csv"
    path.write_text(
        "# command: python -m eval predict\n"
        "image,resolution,class 1,probability 1,class 2,probability 2,resized,error\n"
        "a.png,60,007,0.75,1e5,0.25,True,\n"
    )
    assert answers_in(read_results(path)[1][0]) == [("007", 0.75), ("1e5", 0.25)]


def test_files_of_one_name_get_their_folders_before_it(results, tmp_path, capsys):
    for run in ("A", "B"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "resolution.csv").write_text(results.read_text())
    files = [str(tmp_path / run / "resolution.csv") for run in ("A", "B")]
    main(["plot", *files, "--out", str(tmp_path / "paper")])
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"A-resolution.png", "B-resolution.png"}
    assert "paper/B-resolution.png" in capsys.readouterr().out
    main(["plot", files[0], "--out", str(tmp_path / "paper")])
    assert (tmp_path / "paper" / "resolution.png").is_file()


@pytest.mark.slow
def test_plot_in_every_format_with_labels(results, tmp_path, capsys):
    out = tmp_path / "paper"
    options = ["--format", "pdf", "svg", "png", "--table", "latex", "markdown", "csv", "--width", "one-column"]
    main(["plot", str(results), "--labels", "a_b=A & B", "--order", "c", "--title", "T", "--out", str(out), *options])
    names = {path.name for path in out.iterdir()}
    assert names == {f"resolution.{end}" for end in ("pdf", "svg", "png", "tex", "md", "table.csv")}
    svg = (out / "resolution.svg").read_text()
    assert "A &amp; B (2 seeds)" in svg
    assert "val split, 9 images" in svg
    lines = (out / "resolution.tex").read_text().splitlines()
    assert lines[0].startswith("% Intervals of accuracies over seeds are Student's")
    assert lines[5].startswith("c, mean of 2 seeds & ")
    assert lines[6].startswith(r"A \& B, mean of 2 seeds & $50.0$ {\footnotesize $[40.0, 60.0]$}")
    assert "| c, mean of 2 seeds" in capsys.readouterr().out


def test_equal_figures_are_equal_files(results, tmp_path):
    for name in ("one", "two"):
        main(["plot", str(results), "--format", "png", "svg", "--out", str(tmp_path / name)])
    for ending in ("png", "svg"):
        one, two = ((tmp_path / name / f"resolution.{ending}").read_bytes() for name in ("one", "two"))
        assert one == two


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "b=B"], "--labels: there is no 'b' among a_b, c."),
        (["--labels", "only one"], "--labels has 1 labels for the 2 names a_b, c."),
        (["--labels", "a_b=X", "c=X"], "gives two models the label 'X'"),
        (["--order", "d"], "--order: there is no 'd'"),
        (["--only", "d"], "--only: there is no 'd'"),
        (["--width", "wide"], "a width is one-column or two-column, or inches from 1 to 40"),
        (["--evaluation", "nothing"], "say which one wrote it with --evaluation"),
        (["--evaluation", "length"], "lacks the column"),
    ],
)
def test_user_mistakes(results, options, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plot", str(results), *options])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(".", ","), "has other cells than there are columns"),
        (
            lambda text: "\n".join(f'"{line}",,' if line[:1] == "#" else line for line in text.split("\n")),
            "other cells",
        ),
        (lambda text: text.encode("utf-16"), "is no text in UTF-8"),
    ],
    ids=["decimal commas", "quoted comments", "UTF-16"],
)
def test_files_that_a_spreadsheet_has_saved(results, change, message, tmp_path, capsys):
    changed = change(results.read_text())
    path = tmp_path / "changed.csv"
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    with pytest.raises(SystemExit, match="2"):
        main(["plot", str(path)])
    assert message in (error := capsys.readouterr().err)
    assert str(path) in error


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "README.md",
            "README.md is no CSV file, and figures are drawn from the CSV files of evaluations, such as runs/A",
        ),
        (
            "a.png",
            "a.png is no CSV file, and figures are drawn from the CSV files of evaluations, such as FOLDER/a.csv.",
        ),
        ("", "is a folder, and figures are drawn from the CSV files of evaluations, such as FOLDER/a.csv."),
        ("b.csv", "there is no file FOLDER/b.csv. Did you mean FOLDER/a.csv?"),
    ],
)
def test_what_is_no_csv_file(tmp_path, given, message, capsys):
    for name in ("README.md", "a.png", "a.1.csv", "a.csv", "metrics.csv"):  # a.1.csv is older
        (tmp_path / name).write_text("# A page\n\nwith, commas\nand text\n")
    with pytest.raises(SystemExit):
        main(["plot", str(tmp_path / given)])
    assert message.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_files_without_a_figure_are_skipped_and_bad_ones_named(results, tmp_path, capsys):
    """`results/*.csv` holds the tables, curves and answers that the project wrote itself, and the rest is drawn."""
    main(["plot", str(results), "--table", "csv"])
    (tmp_path / "resolution.png").unlink()
    (tmp_path / "confusion").mkdir()
    others = {
        "cpu.curves.csv": "# command: python -m eval table locality\nrun,step\na,1\n",
        "metrics.csv": "step,seconds,train/loss\n1,0.5,2.0\n",
        "summary.csv": "run,val/accuracy_60\nlinear-seed0,0.5\n",
        "confusion/predictions-a-60.csv": "# command: python -m eval confusion\ntruth,answer,right\na,b,False\n",
    }
    bad = {"a.csv": "x,y\n1,2\n", "empty.csv": "x,y\n"}
    for name, text in {**others, **bad}.items():
        (tmp_path / name).write_text(text)
    paths = sorted(str(path) for path in tmp_path.rglob("*.csv"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["plot", *paths])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    skipped = {line.removeprefix("skipped ").partition(": ")[0] for line in said if line.startswith("skipped ")}
    assert skipped == {str(tmp_path / name) for name in (*others, "resolution.table.csv")}
    assert sum(line.startswith("error: ") for line in said) == 2
    assert said[-1] == "1 of 8 files drawn, 2 of them bad."
    assert (tmp_path / "resolution.png").is_file()  # after the bad files
    main(["plot", str(results), str(tmp_path / "resolution.table.csv")])  # without one


def test_a_mark_of_the_byte_order_and_ends_of_lines_as_on_windows(results, tmp_path, capsys):
    path = tmp_path / "windows.csv"
    path.write_bytes(b"\xef\xbb\xbf" + results.read_bytes().replace(b"\n", b"\r\n"))
    main(["plot", str(path)])
    assert (tmp_path / "windows.png").exists()


@pytest.mark.parametrize("name", ["liere-flops", "invariance"])
def test_a_table_of_a_paper_is_drawn_again(name, tmp_path, capsys):
    """From its records, or as the evaluation that it runs."""
    file = str(ROOT / "papers" / name / "cpu.csv")
    main(["plot", file, "--format", "svg", "--out", str(tmp_path), "--title", "On top"])
    assert ">On top<" in (tmp_path / "cpu.svg").read_text()
    if name == "liere-flops":
        with pytest.raises(SystemExit):
            main(["plot", file, "--labels", "a=b"])
        assert "are in the file of the table" in capsys.readouterr().err


def test_labels_keep_several_seeds_and_only_leaves_out():
    """A single seed is not told from others, with a label and without."""
    names = ("a-seed1", "b-seed1", "c-seed0", "c-seed1", "d-seed1", "e")
    rows = [{"model": name, "reference": "a"} for name in names]
    options = argparse.Namespace(labels=["C", "A"], only=["a", "c-seed1"], order=["c"])  # labels as they are shown
    shown = for_display(rows, ("model", "reference"), options)
    assert [(row["model"], row["reference"]) for row in shown] == [("C-seed0", "A"), ("C-seed1", "A"), ("A", "A")]
    plain = for_display(rows, ("model", "reference"), argparse.Namespace(labels=None, only=None, order=None))
    assert [row["model"] for row in plain] == ["a", "b", "c-seed0", "c-seed1", "d", "e"]
