"""A training and a sweep small enough for every test."""

from __future__ import annotations

from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[2]
TINY = {
    "seed_everything": 3,
    "checkpoint_every": 3,
    "ema": 0.9,
    "figures_every": 0,
    "trainer": {
        "max_epochs": 3,
        "accelerator": "cpu",
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    },
    "model": {
        "vit": {
            "image_size": 60,
            "patch_size": 12,
            "in_channels": 1,
            "num_classes": 4,
            "width": 16,
            "depth": 2,
            "num_heads": 2,
            "drop_path": 0.2,
            "feature_map": "arc-cosine",
            "feature_options": {"order": 2, "num_features": 16},
        },
        "optim": {
            "mixup": 0.2,
            "cutmix": 0.5,
            "redraw_every": 4,
            "randomized_positions": 1.5,
            "position_scale": 1.2,
            "position_offset": 2.0,
        },
    },
    "data": {"source": "arrow", "train_size": 80, "batch_size": 8, "val_size": 16, "resolutions": [84], "workers": 0},
}
CONTENT = {
    "seeds": [0, 4],
    "axes": {
        "attention": {"linear": {"model.vit.attention": "linear"}, "softmax": {"model.vit.attention": "softmax"}},
        "locality": {"plain": {}, "lf": {"model.vit.locality": "gaussian", "model.vit.locality_options": {"sigma": 2}}},
    },
    "models": {"shallow": {"model.vit.depth": 1}},
}


def last(run: Path) -> Path:
    return run / "checkpoints" / "last.ckpt"


def write_sweep(folder: Path, **changes) -> Path:
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(TINY))
    path = folder / "some.yaml"
    content = {"recipe": str(recipe), **CONTENT, **changes}
    path.write_text(
        yaml.safe_dump({key: value for key, value in content.items() if value is not None}, sort_keys=False)
    )
    return path
