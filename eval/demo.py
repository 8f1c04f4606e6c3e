"""`make demo`: three small ViTs that differ only in their attention learn to find an arrow, and are then tested on
images of more cells than they have ever seen."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from eval.__main__ import main as evaluate

RECIPE = "train/configs/demo.yaml"
MODELS = {  # only what differs from the recipe
    "linear-arccos4": [],
    "linear-favor+": [
        *("--model.vit.feature_map", "favor+", "--model.vit.feature_options", "{num_features: 64}"),
        *("--model.vit.qk_norm", "true"),
    ],
    "softmax": ["--model.vit.attention", "softmax", "--model.vit.qk_norm", "true"],
}


def main() -> None:
    started = time.perf_counter()
    root = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    for number, (name, differs) in enumerate(MODELS.items(), 1):
        command = ["-m", "train", "fit", "--config", RECIPE, "--run_dir", str(root / name), *differs]
        print(f"\n[{number}/{len(MODELS)}] {name}: python {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, *command], check=True)
    print("\nTested on images it has never seen, of the training resolution (72 px) and above it:\n", flush=True)
    checkpoints = [str(root / name / "checkpoints" / "last.ckpt") for name in MODELS]
    evaluate(["resolution", "--resolutions", "72", "108", "144", "--checkpoint", *checkpoints])
    print(f"\nTensorBoard: {Path(sys.executable).parent / 'tensorboard'} --logdir {root}")
    print(f"The demo took {(time.perf_counter() - started) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
