"""The metric that a run reports, by what its model answers."""

from __future__ import annotations

import pytest

from train.targets import best_by, main_results, result_text


@pytest.mark.parametrize(
    ("outputs", "head"), [("class", "class"), ("class", "dense"), ("labels", "class"), ("numbers", "class")]
)
def test_a_run_reports_what_its_best_checkpoint_is_chosen_by(outputs, head):
    name = best_by(outputs, head)
    others = {"val/loss_96": 0.1, "val/accuracy_96": 0.9, "val/accuracy": 0.9} if outputs == "class" else {}
    logged = {**others, f"val/{name}": 0.5, f"val/{name}_96": 0.5, f"test/{name}_96": 0.7, f"val/{name}_192": 0.25}
    assert main_results(logged) == (name, {"96": logged[f"val/{name}_96"], "192": 0.25})
    assert main_results(logged, "test") == (name, {"96": 0.7})
    assert main_results({"val/loss": 1.0}) == ("accuracy", {})


def test_results_as_text():
    assert [result_text(name, 0.8166) for name in ("accuracy", "miou", "r2")] == ["81.7 %", "mIoU 81.7 %", "r2 0.817"]
