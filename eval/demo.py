"""`make demo`: test the trained models of the repository, then train three small ViTs and test them alike.

The three differ only in their attention. All models find an arrow on a grid of cells. Larger test images have more
cells than training images.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

from eval.cli import main as evaluate
from train.sweep import main as sweep

PUBLISHED = Path(__file__).resolve().parents[1] / "models"
SIZES = ("108", "168", "276", "552")
SWEEP = "experiments/arrow/demo/sweep.yaml"


def show_published(out: Path, images: int = 64) -> None:
    """Print the accuracies of the models of the arrow task that come with the repository."""
    models = sorted(map(str, PUBLISHED.glob("arrow-*")))
    if not models:
        return
    print(
        f"Models of the repository, trained at 108 px, on {images} images of each size, about a minute:\n", flush=True
    )
    sizes = ["--resolutions", *SIZES, "--images", str(images)]
    evaluate(["resolution", "--checkpoint", *models, *sizes, "--out", str(out)])
    print()


def main() -> None:
    """Test the models of the repository, train those of the demo, and print their accuracies."""
    started = time.perf_counter()
    root = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    show_published(root / "models")
    print("Three models, a few minutes each. What they print is in log.txt of each one's folder.", flush=True)
    sweep([SWEEP, "--out", str(root)])
    print("\nTested on images that were not in the training, at its resolution (72 px) and above:\n", flush=True)
    checkpoints = sorted(map(str, root.glob("*/checkpoints/last.ckpt")))
    evaluate(["resolution", "--resolutions", "72", "108", "144", "--checkpoint", *checkpoints])
    print(f"\nTensorBoard: {Path(sys.executable).parent / 'tensorboard'} --logdir {root}")
    print(f"The demo took {(time.perf_counter() - started) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
