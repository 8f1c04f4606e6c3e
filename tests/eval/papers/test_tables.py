"""Every table of the project runs from end to end on tiny images, by the command line.

Two of its rows are there, on one set of images for each recipe; of these, one is trained for each kind of attention,
and its folder stands for the other's. THOROUGH=1 trains all rows on all sets.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from eval import cli
from eval.encodings import translations
from eval.papers import estimate, results
from eval.papers.plan import make_plan
from eval.papers.read import PAPERS, all_tables, find_table, table_content
from eval.report import read_csv
from tests.helpers.tiny_images import write_all
from train import cli as train_cli
from train import intervals
from train.data.tasks import TASKS
from train.runs.environment import ROOT
from train.sweeps.file import Run
from train.sweeps.runner import SweepRunner
from train.sweeps.settings import SETTINGS

TABLES = sorted(path.parent.name for path in PAPERS.glob("*/table.yaml"))
TINY = {
    "trainer.max_epochs": 2,
    "trainer.max_steps": 2,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.enable_progress_bar": False,
    "trainer.log_every_n_steps": 1,
    "trainer.accelerator": "cpu",
    "trainer.precision": "32-true",
    "figures_every": 0,
    "data.batch_size": 8,
    "data.workers": 0,
    "data.resolutions": [],
}

AGAIN = {"circulant-init", "liere-2d", "lra", "sparse-cayley"}  # tables that are made a second time
START_FROM = {"circulant-init"}  # whose rows are all trained
# Options of evaluations.
FASTER = {
    "locality": ["--images", "16", "--tokens", "64", "256"],
    "latency": ["--batch-size", "1", "--features", "8", "--image-size", "16", "--encodings", "rope", "liere"],
    "length": ["--tokens", "16", "64", "--heads", "2", "--head-dim", "16", "--features", "16"],
}


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    return write_all(tmp_path_factory.mktemp("images"))


def stand_ins(runner: SweepRunner) -> dict[str, Run]:
    """Return the run whose finished folder stands for each run: the first row of one attention, the last of the next.

    Every run of a table whose rows start from others stands for itself, since what they start from counts.
    """
    kinds: dict[tuple[str, str], list[Run]] = {}
    alone = os.environ.get("THOROUGH") or runner.out.parent.name in START_FROM
    assert alone or not any("init_from" in run.overrides for run in runner.runs)
    for run in runner.runs:
        kind = (run.name, "") if alone else (run.choices["data"], run.choices["attention"])
        kinds.setdefault(kind, []).append(run)
    return {run.name: runs[-(i % 2)] for i, runs in enumerate(kinds.values()) for run in runs}


@pytest.fixture
def in_process(monkeypatch):
    """Train in this process: a new one for each of hundreds of training runs would take half an hour."""

    def train(self):
        trained = stand_ins(self)
        for run in sorted(self.runs, key=lambda run: run != trained[run.name]):  # stable: those that are trained first
            if self.state(run) == "finished":
                continue
            if run == trained[run.name]:
                self.folder(run).mkdir(parents=True)
                train_cli.run(self.command(run)[2:])
            else:
                shutil.copytree(self.folder(trained[run.name]), self.folder(run))
            (self.folder(run) / SETTINGS).write_text(json.dumps(self.settings(run)))

    monkeypatch.setattr(SweepRunner, "train", train)
    monkeypatch.setattr(results, "ROUNDS", 2)
    monkeypatch.setattr(intervals, "RESAMPLES", 20)
    monkeypatch.setattr(translations, "DRAWS", (1, 4, 16))


def tiny_table(name: str, folder: Path) -> Path:
    """Return a copy of a table's file whose budget `tiny` is the one for CPUs with two steps of a small model."""
    content = table_content(PAPERS / name / "table.yaml")
    budget = dict(content["budgets"]["cpu"])
    budget["fields"] = {**(budget.get("fields") or {}), **TINY}
    budget["each"] = {
        name: {"data.train_size": 16, "data.val_size": 8} if is_drawn(content, spec or {}) else {"data.train_size": 0}
        for name, spec in (content.get("data") or {}).items()
    }
    by_row = (budget.get("by_row") or {}).items()
    budget["by_row"] = {row: {k: v for k, v in fields.items() if k not in TINY} for row, fields in by_row}
    budget["images"] = 4
    budget["arguments"] = [*(budget.get("arguments") or []), *FASTER.get(content.get("evaluation"), [])]
    if not os.environ.get("THOROUGH"):
        rows = list(content.get("rows") or {})
        started = [x for name in rows if (x := (content["rows"][name] or {}).get("start_from"))]
        budget["rows"] = [name for name in rows if name in {rows[0], rows[-1], *started, content.get("reference")}]
        sets = budget.get("data") or list(content.get("data") or {})
        first = {(content["data"][name] or {}).get("recipe"): name for name in reversed(list(sets))}.values()
        budget["data"] = (
            {x: sets[x] for x in sets if x in first} if isinstance(sets, dict) else [x for x in sets if x in first]
        )
    for column in (content.get("columns") or {}).values():
        column |= {"batch": 2} if column["measure"].startswith("ms-") else {}
    content["budgets"] = {"tiny": budget}
    path = folder / name / "table.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def is_drawn(content: dict, data: dict) -> bool:
    """Whether the images of a set are generated."""
    recipe = yaml.safe_load(Path(data.get("recipe") or content["recipe"]).read_text())
    return (data.get("fields") or {}).get("data.source", recipe["data"]["source"]) in TASKS


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_each_table_runs_from_end_to_end(name, images, in_process, tmp_path, capsys):
    path = tiny_table(name, tmp_path / "files")
    out = tmp_path / "out"
    arguments = ["table", str(path), "--budget", "tiny", "--data", str(images), "--out", str(out), "--device", "cpu"]
    arguments += ["--format", "svg", *(["png"] if name in AGAIN else []), "--title", "On top"]
    cli.main(arguments)
    printed = capsys.readouterr().out
    table = find_table(name)
    assert f"{table.title} (tiny budget" in printed
    for ending in ("md", "tex", "csv"):
        assert (out / name / f"tiny.{ending}").is_file()
    if table.figure or table.evaluation:
        assert (out / name / "tiny.png").is_file() == (name in AGAIN)
        assert ">On top<" in (out / name / "tiny.svg").read_text()
    if table.evaluation:
        return
    cells = read_csv(out / name / "tiny.csv")[1]
    assert {cell["row"] for cell in cells} == set(table.rows)
    assert all(cell["value"] or cell["text"] for cell in cells if cell["state"] == "measured"), "an empty cell"
    states = {cell["state"] for cell in cells}
    assert "measured" in states or states == {"not built", "not run"}
    sets = table.budgets["cpu"].sets(table)
    missing = {(c["data"], c["row"], c["why"]) for c in cells if c["state"] == "not run" and c["data"] in sets}
    assert not {each for each in missing if each[2] != "not in this budget"}, "runs that were planned are missing"
    if name not in AGAIN and not os.environ.get("THOROUGH"):
        return
    before = (out / name / "tiny.md").read_text()
    cli.main([*arguments, "--no-train"])  # from what exists
    if not any("time" in column["measure"] or "ms-" in column["measure"] for column in table.columns.values()):
        assert (out / name / "tiny.md").read_text() == before


@pytest.mark.slow
def test_the_runs_of_a_table_stay_where_they_are(in_process, tmp_path, monkeypatch, capsys):
    """Also where another spelling of its name replaces the files of its evaluation, which have the runs' name."""
    out = tmp_path / "out"
    content = {
        **{"title": "Mine", "recipe": str(ROOT / "train/configs/demo.yaml"), "evaluation": "resolution"},
        **{"data": {"arrow": None}, "rows": {"one": None}},
        "budgets": {"tiny": {"fields": {**TINY, "data.train_size": 16, "data.val_size": 8}}},
    }
    content["budgets"]["tiny"]["arguments"] = ["--images", "8", "--resolutions", "72"]
    path = tmp_path / "mine" / "table.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(content))
    arguments = ["--budget", "tiny", "--out", str(out), "--device", "cpu"]
    cli.main(["table", str(path), *arguments])
    runs = sorted((out / "mine" / "tiny").iterdir())
    monkeypatch.chdir(path.parent)
    assert "1 training run to do" in capsys.readouterr().out
    cli.main(["table", "table.yaml", *arguments])
    assert "to do" not in capsys.readouterr().out
    assert sorted((out / "mine" / "tiny").iterdir()) == runs
    assert (out / "mine" / "tiny.1.csv").is_file()
    content["budgets"]["tiny"]["fields"]["model.optim.lr"] = 0.5  # the runs that are there are of another table
    path.write_text(yaml.safe_dump(content))
    cli.main(["table", "table.yaml", *arguments, "--no-train"])
    assert "Trained with other settings than the table has now: arrow.one-seed0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["table", "table.yaml", *arguments])
    assert "arrow.one-seed0 was begun with other settings (overrides: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_start_of_zero_leaves_a_pretrained_model_as_it_is(images, in_process, tmp_path):
    path = tiny_table("circulant-init", tmp_path / "files")
    content = yaml.safe_load(path.read_text())
    content["budgets"]["tiny"]["rows"] = ["none", "pretrained", "pretrained-zero", "pretrained-mixed"]
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    arguments = ["table", str(path), "--budget", "tiny", "--data", str(images), "--out", str(tmp_path / "out")]
    cli.main([*arguments, "--device", "cpu", "--only", "attention=softmax"])
    cells = read_csv(tmp_path / "out" / "circulant-init" / "tiny.csv")[1]
    of_row = {cell["row"]: cell for cell in cells if cell["column"] == "change at step 0"}
    assert float(of_row["pretrained"]["value"]) == 0
    assert float(of_row["pretrained-zero"]["value"]) < 1e-5
    assert float(of_row["pretrained-mixed"]["value"]) > 1e-3
    assert of_row["none"]["text"] == "from scratch"


def test_every_table_can_be_read_and_says_what_differs():
    for table in all_tables():
        assert {"cpu", "gpu", "full"} <= set(table.budgets), table.name
        assert all((table.title, table.source, table.shows)), table.name
        assert table.evaluation or table.differs, table.name


@pytest.mark.slow
def test_every_row_of_every_budget_makes_a_model_on_the_right_images(images, tmp_path):
    """Otherwise `--list` and whole tables end in an error, which tiny budgets do not show."""
    for table in all_tables():
        for budget in table.budgets:
            make_plan(table, budget, images, tmp_path)


@pytest.mark.slow
def test_the_list_takes_a_step_of_each_table(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        estimate, "own_seconds", lambda step, device: step() or 2 * estimate.SLOW
    )  # so that it is the last
    cli.main(["table", "--list", "--data", str(images), "--out", str(tmp_path), "--device", "cpu"])
    printed = capsys.readouterr().out
    assert [name for name in TABLES if name not in printed] == []


def test_a_table_that_shares_runs_trains_the_same_models(images, tmp_path):
    for table in (table for table in all_tables() if table.runs):
        for budget in table.budgets:
            own, others = (
                {group.model: group.settings() for group in make_plan(each, budget, images, tmp_path) if group.folders}
                for each in (table, find_table(table.runs))
            )
            assert own or budget != "cpu"
            assert own == {model: settings for model, settings in others.items() if model in own}, table.name
