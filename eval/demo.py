"""`make demo`: three small ViTs that differ only in their attention learn to find an arrow, and are then tested on
images of more cells than they have ever seen."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

from eval.__main__ import main as evaluate
from train.sweep import main as sweep

SWEEP = "experiments/arrow/demo/sweep.yaml"


def main() -> None:
    started = time.perf_counter()
    root = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    print(
        "Three models, a few minutes each. What their training prints is in log.txt of each one's folder.", flush=True
    )
    sweep([SWEEP, "--out", str(root)])
    print("\nTested on images it has never seen, of the training resolution (72 px) and above it:\n", flush=True)
    checkpoints = sorted(map(str, root.glob("*/checkpoints/last.ckpt")))
    evaluate(["resolution", "--resolutions", "72", "108", "144", "--checkpoint", *checkpoints])
    print(f"\nTensorBoard: {Path(sys.executable).parent / 'tensorboard'} --logdir {root}")
    print(f"The demo took {(time.perf_counter() - started) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
