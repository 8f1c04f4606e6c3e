"""Names of models from their paths: runs of one name in several folders, and several checkpoints of one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eval.cli import main
from eval.names import name_of, names_of
from tests.helpers.checkpoints import CONFIG, read, save

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([f"runs/x-seed0/{LAST}", f"runs/y-seed0/{LAST}"], ["x-seed0", "y-seed0"]),
        ([f"runs/a/x-seed0/{LAST}", f"runs/b/x-seed0/{LAST}"], ["a/x-seed0", "b/x-seed0"]),
        ([f"a/s/x/{LAST}", f"b/s/x/{LAST}", f"b/s/y/{LAST}"], ["a/s/x", "b/s/x", "y"]),
        # All seeds of a model have one name, and seeds from several folders are of one model where they can be.
        ([f"a/x-seed0/{LAST}", f"b/x-seed0/{LAST}", f"b/x-seed1/{LAST}"], ["a/x-seed0", "b/x-seed0", "b/x-seed1"]),
        ([f"a/x-seed0/{LAST}", f"b/x-seed1/{LAST}"], ["x-seed0", "x-seed1"]),
        ([f"x-seed0/{BEST}", f"x-seed0/{LAST}"], ["x:best-seed0", "x:last-seed0"]),
        ([f"a/x/{BEST}", f"a/x/{LAST}", f"b/x/{LAST}"], ["a/x:best", "a/x:last", "b/x"]),
        (["models/x/model.safetensors", f"runs/x/{LAST}"], ["models/x", "runs/x"]),
        (["one/weights.ckpt", "two/weights.ckpt", "two/others.ckpt"], ["one/weights", "two/weights", "others"]),
        (["/x.ckpt", "/a/x.ckpt"], ["/x", "a/x"]),
    ],
    ids=str,
)
def test_names_are_the_shortest_ends_that_differ(paths, names):
    assert names_of([Path(path) for path in paths]) == names


def test_runs_of_one_name_that_were_trained_otherwise():
    """With equal settings they are seeds of one model, as in the cases above."""
    paths = [Path(f"{name}/{LAST}") for name in ("s/a/x-seed0", "s/b/x-seed1", "t/a/x-seed2", "y-seed0")]
    alike = {"lr": 1.0, "seed": 0}
    assert names_of(paths, [alike, {**alike, "seed": 1}, alike, alike]) == ["x-seed0", "x-seed1", "x-seed2", "y-seed0"]
    other = names_of(paths, [alike, {**alike, "lr": 2.0}, alike, {**alike, "lr": 3.0}])
    assert other == ["a/x-seed0", "b/x-seed1", "a/x-seed2", "y-seed0"]
    other = names_of(paths, [alike, alike, {**alike, "lr": 2.0}, alike])
    assert other == ["s/a/x-seed0", "s/b/x-seed1", "t/a/x-seed2", "y-seed0"]
    one_folder = [Path(f"a/x-seed{seed}/{LAST}") for seed in (0, 1)]
    assert names_of(one_folder, [alike, {"lr": 2.0}]) == ["x-seed0", "x-seed1"]  # which `check_seeds` refuses


@pytest.mark.slow
def test_runs_of_one_name_that_were_trained_otherwise_are_compared(tmp_path):
    runs = [save(tmp_path / f"{'ab'[seed]}/x-seed{seed}", replace(CONFIG, depth=seed + 1)) for seed in (0, 1)]
    options = ["--resolutions", "60", "--images", "4", "--out", str(tmp_path / "out"), "--reference", "b/x"]
    main(["compare", *map(str, runs), *options])
    rows = read(tmp_path / "out" / "compare.csv")[1]
    assert [(row["model"], row["reference"]) for row in rows] == [("a/x-seed0", "b/x"), ("b/x-seed1", "b/x")]


def test_checkpoints_that_cannot_be_told_apart():
    with pytest.raises(ValueError, match=r"a/x.ckpt and a/x.pt are one name, x:x, so that their rows would mix"):
        names_of([Path("a/x.ckpt"), Path("a/x.pt")])


def test_a_run_within_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name_of(Path(LAST)) == tmp_path.name


@pytest.mark.slow
def test_runs_of_one_name_in_tables_and_figures(tmp_path, capsys):
    """Their seeds are grouped, and names with a folder go with --only, --labels and --reference."""
    runs = [str(save(tmp_path / folder / f"x-seed{seed}")) for folder in ("a", "b") for seed in (0, 1)]
    options = ["--resolutions", "60", "--images", "4", "--out", str(tmp_path / "out")]
    main(["compare", *runs, runs[0].replace("/a/", "/b/../a/"), *options, "--reference", "b/x"])
    rows = read(tmp_path / "out" / "compare.csv")[1]
    assert [row["model"] for row in rows] == ["a/x-seed0", "a/x-seed1", "b/x-seed0", "b/x-seed1"]
    assert {row["reference"] for row in rows} == {"b/x"}
    table = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert table[2:4] == ["a/x, mean of 2 seeds", "b/x, mean of 2 seeds"]
    main(["plot", str(tmp_path / "out" / "compare.csv"), "--only", "a/x", "--labels", "a/x=First", "--table", "csv"])
    assert "First, mean of 2 seeds" in (tmp_path / "out" / "compare.table.csv").read_text()
    main(["ablation", *runs, *options, "--reference", "a/x"])
    assert "| b/x - a/x " in capsys.readouterr().out


@pytest.mark.slow
def test_files_of_runs_of_one_name(tmp_path):
    runs = [str(save(tmp_path / folder / "x")) for folder in ("a", "b")]
    main(["confusion", *runs, "--resolutions", "60", "--images", "4", "--out", str(tmp_path / "out")])
    written = {path.name for path in (tmp_path / "out" / "confusion").iterdir()}
    assert {"matrix-a-x-60.csv", "matrix-b-x-60.csv", "predictions-a-x-60.csv"} <= written


def test_best_and_last_of_one_run(tmp_path, capsys):
    last = save(tmp_path / "m-seed0")
    best = last.with_name("best.ckpt")
    best.write_bytes(last.read_bytes())
    arguments = ["--checkpoint", str(best), str(last), "--resolutions", "60", "--images", "4"]
    main(["resolution", *arguments, "--out", str(tmp_path / "out")])
    _, rows = read(tmp_path / "out" / "resolution.csv")
    assert [row["model"] for row in rows] == ["m:best-seed0", "m:last-seed0"]
    assert "mean of 2 seeds" not in capsys.readouterr().out
