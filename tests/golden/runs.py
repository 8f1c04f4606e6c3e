"""Small training runs whose checkpoints are kept: what is trained, where they lie, and how command lines are called."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from torch import Tensor

from performer_string import ViT

from .numbers import draw

CHECKPOINTS = Path(__file__).with_name("checkpoints")
LOGITS, RESUMED, FOLDED = (CHECKPOINTS / f"{name}.safetensors" for name in ("logits", "resumed", "folded"))
WHOLE = "whole"  # the one checkpoint with its optimiser and loops, to be resumed
STUDIED = ("relu", "softmax")  # those of the evaluations too, with large weights, that attention reaches the logits
SIZES = (60, 84)  # of the images in pixels: that of the training and a larger one
VIT: dict[str, Any] = {
    "image_size": 60,
    "patch_size": 12,
    "in_channels": 1,
    "num_classes": 4,
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 1.0,
}
POLYNOMIAL = {"feature_map": "polynomial", "feature_options": {"lower": True}}
MODELS: dict[str, dict[str, Any]] = {
    "favor": {"feature_options": {"num_features": 8}, "encoding": "circulant-string"},
    "relu": {
        "feature_map": "relu",
        "feature_options": {"order": 4, "num_features": 8},
        "encoding": "rope-mixed",
        "key_gate": True,
        "registers": 1,
        "locality": "gaussian",
    },
    "softmax": {
        "attention": "softmax",
        "encoding": "cayley-string",
        "encoding_options": {"generator": "random", "fraction": 0.4, "init_std": 0.5},
        "qk_norm": True,
        "log_scale": True,
        "tied_start": True,
        "locality": "table",
        "pool": "cls",
    },
    "lepe": {**POLYNOMIAL, "encoding": "absolute", "values": "lepe", "pool": "attention", "log_scale": True},
    "connection": {
        "feature_map": "favor+hyperbolic",
        "feature_options": {"num_features": 8, "learned": True},
        "encoding": "pate-so2",
        "encoding_options": {"layout": "axes", "metric": True, "conformal_scaling": 0.5},
        "values": "connection",
        "centred": True,
    },
    WHOLE: {
        "feature_map": "relu",
        "feature_options": {"order": 2, "num_features": 8},
        "encoding": "circulant-string",
        "encoding_options": {"block_size": 4},
        "tied_start": True,
        "drop_path": 0.1,
    },
}
OPTIM: dict[str, dict[str, Any]] = {
    WHOLE: {
        "redraw_every": 2,
        "mixup": 0.2,
        "cutmix": 0.5,
        "position_frame": 1.5,
        "position_frame_min": 1.2,
        "position_scale": 1.2,
        "position_offset": 2.0,
    }
}
RESUME = ["--trainer.max_epochs", "2"]  # one epoch more


def recipe(name: str) -> dict[str, Any]:
    """Return the configuration of a training run: an epoch of three steps."""
    trainer = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "log_every_n_steps": 1}
    return {
        "seed_everything": 3,
        "checkpoint_every": 2,
        "ema": 0.9 if name == WHOLE else 0.0,
        "trainer": {**trainer, "enable_progress_bar": False, "enable_model_summary": False},
        "model": {"vit": {**VIT, **MODELS[name]}, "optim": {"lr": 0.01, **OPTIM.get(name, {})}},
        "data": {
            "source": "arrow",
            "train_size": 24,
            "batch_size": 8,
            "val_size": 16,
            "resolutions": [84],
            "workers": 0,
        },
    }


def checkpoint(name: str) -> Path:
    return CHECKPOINTS / name / "checkpoints" / "last.ckpt"


def command(module: str, *arguments: str, folder: Path) -> str:
    """Run `python -m MODULE ...` of this process in a folder; return what it prints, and raise where it fails."""
    said, before = io.StringIO(), Path.cwd()
    try:
        os.chdir(folder)
        with (
            mock.patch.object(sys, "argv", [module, *arguments]),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(
                f"python -m {module} {' '.join(arguments)} ended with {end.code}:\n{said.getvalue()}"
            ) from end
    finally:
        os.chdir(before)
    return said.getvalue()


@torch.no_grad()
def logits(model: ViT) -> Tensor:
    """Return the logits of two images of each size, in float64: [4, classes]."""
    model = model.double().eval()
    return torch.cat([model(draw(2, 1, size, size, key=2)) for size in SIZES])


def begun(folder: Path) -> Tensor:
    """Return the logits after a training, of three steps, that begins with old weights and learns from old ones."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe("softmax")))
    old = str(checkpoint("softmax"))
    options = [
        "--model.distillation.teacher",
        str(checkpoint("studied-softmax")),
        "--model.distillation.attention",
        "1",
    ]
    options += ["--init_from", old, "--model.optim.weight_decay", "2.0", "--run_dir", "run"]
    command("train", "fit", "--config", "recipe.yaml", *options, folder=folder)
    return logits(ViT.from_checkpoint(folder / "run" / "checkpoints" / "last.ckpt"))
