"""What stands in the cells of a table, and below it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from eval.papers.records import MEASURED, cell_of
from eval.papers.table_spec import DataSpec, RowSpec, TableFile
from eval.papers.write import devices_of


def trained(folder: Path, *devices: str) -> SimpleNamespace:
    """Return a group with one finished run, whose processes ran on these devices."""
    folder.mkdir()
    lines = [json.dumps({"device": device, "versions": "torch 2.11.0"}) for device in devices]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    return SimpleNamespace(finished=lambda: {0: folder})


def test_devices_of_trainings_in_turn(tmp_path):
    groups = [
        trained(tmp_path / "a", "H200", "H200", "CPU"),
        trained(tmp_path / "b", "H200"),
        trained(tmp_path / "c", "H200"),
        SimpleNamespace(finished=dict),
    ]
    assert devices_of(groups) == ["H200 (torch 2.11.0), then CPU (torch 2.11.0)", "H200 (torch 2.11.0)"]


def test_numbers_of_parameters():
    """In millions of a model, and counted of its encoding."""
    columns = {"all": {"measure": "parameters"}, "encoding": {"measure": "parameters", "part": "encoding"}}
    table = TableFile(
        Path("mine.yaml"), "mine", "Mine", columns=columns, data={"set": DataSpec()}, rows={"r": RowSpec()}
    )
    cell = {"state": MEASURED, "low": "", "high": "", "holm": "", "text": ""}
    assert cell_of(table, {**cell, "column": "all", "value": 0.1184}) == "0.118"
    assert cell_of(table, {**cell, "column": "encoding", "value": 384.0}) == "384"
