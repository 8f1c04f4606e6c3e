"""What evaluations write: `python -m tests.golden.make_eval` keeps the columns that are the same at every run."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import torch

from eval.report import read_csv

from .runs import CHECKPOINTS, command

TABLES = Path(__file__).with_name("eval")
LARGE = ["studied-relu", "studied-softmax"]
ALL = ["favor", "relu", "softmax", "lepe", "connection", "whole"]
IMAGES = ["--images", "60", "--split", "val", "--device", "cpu"]
GROUPS = ["softmax", "expected", "features", "draws", "temperature", "thinned", "near", "shuffled"]  # those of then
EVALUATIONS: dict[str, list[str]] = {
    "resolution": ["--checkpoint", *LARGE, *IMAGES, "--resolutions", "60", "84", "108"],
    "invariance": ["--checkpoint", *LARGE, *ALL],
    "redundancy": ["--head-dim", "12"],
    "cost": ["--checkpoint", *LARGE, "favor", *IMAGES, "--rounds", "5"],
    "estimator": ["--checkpoint", *LARGE, "--images", "8", "--split", "val", "--device", "cpu", "--queries", "16"],
    "intervene": ["--checkpoint", *LARGE, *IMAGES, "--groups", *GROUPS],
}
# Times and memory; numbers whose draws depend on how many others were drawn before.
LEFT_OUT = {
    "cost": {"ms", "images/s", "relative to the first", "peak MiB"},
    "invariance": {"value"},
    "redundancy": {"error"},
}


def evaluate(name: str, out: Path) -> list[dict[str, str]]:
    """Return the rows that an evaluation writes, without the columns that are left out."""
    command("eval", name, *EVALUATIONS[name], "--out", str(out), folder=CHECKPOINTS)
    left_out = LEFT_OUT.get(name, set())
    return [{key: cell for key, cell in row.items() if key not in left_out} for row in read_csv(out / f"{name}.csv")[1]]


def main() -> None:
    torch.set_num_threads(1)
    TABLES.mkdir(exist_ok=True)
    for name in EVALUATIONS:
        with tempfile.TemporaryDirectory() as out:
            rows = evaluate(name, Path(out))
        with (TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"{name}: {len(rows)} rows of {', '.join(rows[0])}")


if __name__ == "__main__":
    main()
