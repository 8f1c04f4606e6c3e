"""What does a training step of a small model cost, relative to a plain ViT with torch's fused softmax?

The plain ViT is timm's, of the same sizes, with a learned table of positions. So the encoding `absolute` compares only
the attention, and other encodings add the cost of their rotation. All models are measured in turn, round after round.
A ratio is the median over the rounds of a model's time over that of the plain ViT in the same round.

Columns: `model`, `encoding`, `parameters (M)`, `ms` (median of the rounds), `images/s`, `to plain`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eval.argument_types import WithoutRepetitions
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import add_rounds, median_ratio, million_parameters, time_in_turn
from eval.speed.methods import feature_options
from eval.speed.reports import PLAIN, STEPS
from performer_string import ENCODINGS, VARIANTS, ViT, ViTConfig
from performer_string.models.config import patch_and_image
from performer_string.utils.registry import lookup
from train.utils.ranges import at_least

CLASSES = 10
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "favor+": {"feature_map": "favor+"},
    "favor+hyperbolic": {"feature_map": "favor+hyperbolic"},
    "arc-cosine": {"feature_map": "arc-cosine", "order": 4},
    "polynomial": {"feature_map": "polynomial", "lower": True},
    "polynomial, narrow": {"feature_map": "polynomial", "lower": True, "qk_dim": 4},
    "performer-pytorch": {"attention": "performer-pytorch", "feature_map": "favor+"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval steps`."""
    once: dict[str, Any] = {"nargs": "+", "action": WithoutRepetitions}
    parser.add_argument("--models", **once, default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument(
        "--encodings", **once, default=["absolute", "circulant-string"], help="of each model: " + ", ".join(ENCODINGS)
    )
    parser.add_argument("--variant", choices=VARIANTS, default="micro")
    parser.add_argument("--image-size", type=at_least(1), default=32)
    parser.add_argument("--patch-size", type=at_least(1), default=4)
    parser.add_argument("--features", type=at_least(1), default=48, help="random features per head")
    parser.add_argument("--batch-size", type=at_least(1), default=128)
    add_rounds(parser, 7)
    add_dtype(parser)


def timm_vit(vit: ViT) -> nn.Module:
    """Return timm's ViT of a model's sizes, for images.

    Raises:
        ImportError: timm is not installed.
    """
    from timm.models.vision_transformer import VisionTransformer

    c, has_token = vit.config, vit.config.pool == "cls"
    shape: dict[str, Any] = {"img_size": vit.train_image_size, "patch_size": vit.patch, "in_chans": c.in_channels}
    sizes: dict[str, Any] = {"embed_dim": c.width, "depth": c.depth, "num_heads": c.num_heads, "mlp_ratio": c.mlp_ratio}
    pool: dict[str, Any] = {"class_token": has_token, "global_pool": "token" if has_token else "avg", "fc_norm": False}
    return VisionTransformer(**shape, **sizes, **pool, num_classes=c.num_classes)


def build(name: str, options: argparse.Namespace, encoding: str = "absolute") -> tuple[nn.Module, ViTConfig]:
    """Return a model of the command line's sizes with an encoding, and its configuration.

    Raises:
        ValueError: timm, which has the plain ViT, is not installed.
    """
    fields = dict(MODELS.get(name, {}))
    own: dict[str, Any] = {name: fields.pop(name) for name in list(fields) if name in ("order", "lower")}
    if "feature_map" in fields:
        own |= feature_options(fields["feature_map"], options.features)
    sizes = {"image_size": options.image_size, "patch_size": options.patch_size, "num_classes": CLASSES}
    vit = ViT(ViTConfig(**sizes, variant=options.variant, feature_options=own, encoding=encoding, **fields))
    if name != PLAIN:
        return vit, vit.config
    try:
        return timm_vit(vit), vit.config
    except ImportError as error:
        raise ValueError(f"the plain ViT is timm's, which is not installed (pip install timm): {error}.") from error


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the option `--dtype`, the type that models compute in."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16: mixed precision, by autocast"
    )


def training_step(
    model: nn.Module, config: ViTConfig, batch: int, device: torch.device, dtype: str = "float32"
) -> Callable[[], None]:
    """Return a function for a training step on random images, in mixed precision for `bfloat16`.

    Args:
        model: model to train, which may be another one than a ViT of `config`.
        config: configuration with the size and channels of the images, the classes and the head.
        batch: number of images.
        device: device to compute on.
        dtype: `float32` or `bfloat16`.
    """
    size = patch_and_image(config.patch_size, config.image_size)[1]
    images = torch.randn(batch, config.in_channels, *size, device=device)
    targets = torch.randint(config.num_classes, (batch, *(size if config.head == "dense" else ())), device=device)
    model = model.to(device).train()
    return partial(step, model, torch.optim.AdamW(model.parameters()), images, targets, dtype)


def step(
    model: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, targets: Tensor, dtype: str = "float32"
) -> None:
    """Take one training step, in mixed precision for `bfloat16`."""
    optimiser.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = F.cross_entropy(model(images), targets)
    loss.backward()
    optimiser.step()


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model with each encoding, the plain one first."""
    for name in options.models:
        lookup("model", name, MODELS)
    for name in options.encodings:
        lookup("encoding", name, ENCODINGS)
    torch.manual_seed(0)
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    parameters: dict[tuple[str, str], float] = {}
    pairs = [(PLAIN, "absolute"), *itertools.product(options.models, options.encodings)]
    for name, encoding in pairs:
        model, config = build(name, options, encoding)
        parameters[name, encoding] = million_parameters(model)
        calls[name, encoding] = training_step(model, config, options.batch_size, device, options.dtype)
    times = time_in_turn(calls, options.rounds, device)
    for (name, encoding), seconds in times.items():
        median = statistics.median(seconds)
        yield {
            "model": name,
            "encoding": encoding,
            "parameters (M)": parameters[name, encoding],
            "ms": round(1000 * median, 1),
            "images/s": float(f"{options.batch_size / median:.4g}"),
            "to plain": round(median_ratio(seconds, times[pairs[0]]), 3),
        }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, STEPS)
