"""How far a run in training is, by its table of metrics."""

from __future__ import annotations

from train.runs.loggers import MetricsCSV
from train.sweeps.progress import progress


def test_progress_is_that_of_the_metrics(tmp_path):
    """Of the last whole row, which a training may be writing further ones behind."""
    (folder := tmp_path / "a").mkdir()
    assert progress(folder) == "a"
    table = MetricsCSV(folder / "metrics.csv")
    table.rewrite([])
    assert progress(folder) == "a"
    for step in range(9, 5000, 10):
        table.log_metrics({"train/loss": 0.5, "epoch": step // 2000}, step)
    table.log_metrics({"val/accuracy": 0.5, "epoch": 2}, 4999)
    assert progress(folder) == "a epoch 3 step 5000"
    with table.path.open("a") as file:
        file.write("7.0,15")
    assert progress(folder) == "a epoch 3 step 5000"
    table.path.write_text("step,mine\r\n3,0.5\r\n")
    assert progress(folder) == "a step 4"
