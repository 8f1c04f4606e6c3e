"""How many images a validation counts, which may be a part of those held out."""

from __future__ import annotations

import json

import pytest

from tests.helpers.runs import fit, metrics
from train.publish import main

pytestmark = pytest.mark.slow  # training runs


@pytest.mark.parametrize("limit", ["limit_val_batches", "overfit_batches"])
def test_accuracy_of_a_part_is_published_as_such(config, tmp_path, caplog, limit):
    """One batch of 8 of the 16 images."""
    caplog.set_level("INFO")
    run, part = tmp_path / "run", {"limit_val_batches": "0.5", "overfit_batches": "1"}[limit]
    fit(config, run, "--trainer.max_epochs", "1", f"--trainer.{limit}", part)
    assert " on 8 validation images, step " in caplog.text
    assert metrics(run)["val/images"] == 8
    for name, options in (("last", []), ("best", ["--best"])):
        main([str(run), str(tmp_path / name), "--skip_test", *options])
        rows = json.loads((tmp_path / name / "config.json").read_text())["metrics"]
        assert {row["images"] for row in rows} == {8}
        assert (8 * rows[0]["accuracy"] / 100) % 1 == 0
