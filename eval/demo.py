"""`make demo`: train three small ViTs that differ only in their attention, and test them at larger resolutions.

They learn to find an arrow on a grid of cells. The larger images have more cells than those of the training.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

from eval.cli import main as evaluate
from train.sweep import main as sweep

SWEEP = "experiments/arrow/demo/sweep.yaml"


def main() -> None:
    """Train the models of the demo and print their accuracies."""
    started = time.perf_counter()
    root = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    print(
        "Three models, a few minutes each. What their training prints is in log.txt of each one's folder.", flush=True
    )
    sweep([SWEEP, "--out", str(root)])
    print(
        "\nTested on images that were not in the training, at the training resolution (72 px) and above it:\n",
        flush=True,
    )
    checkpoints = sorted(map(str, root.glob("*/checkpoints/last.ckpt")))
    evaluate(["resolution", "--resolutions", "72", "108", "144", "--checkpoint", *checkpoints])
    print(f"\nTensorBoard: {Path(sys.executable).parent / 'tensorboard'} --logdir {root}")
    print(f"The demo took {(time.perf_counter() - started) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
