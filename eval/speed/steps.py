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

from eval.argument_types import WithoutRepetitions, positive_int
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import add_rounds, median_ratio, million_parameters, time_in_turn
from eval.speed.methods import feature_options
from eval.speed.steps_report import PLAIN, SHOWN
from performer_string import ENCODINGS, VARIANTS, ViT, ViTConfig
from performer_string.utils.registry import lookup

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
    parser.add_argument("--image-size", type=positive_int, default=32)
    parser.add_argument("--patch-size", type=positive_int, default=4)
    parser.add_argument("--features", type=positive_int, default=48, help="random features per head")
    parser.add_argument("--batch-size", type=positive_int, default=128)
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


def build(name: str, options: argparse.Namespace, encoding: str = "absolute") -> nn.Module:
    """Build a model of the command line's sizes with an encoding.

    Raises:
        ValueError: timm, which has the plain ViT, is not installed.
    """
    fields = dict(MODELS.get(name, {}))
    own: dict[str, Any] = {name: fields.pop(name) for name in list(fields) if name in ("order", "lower")}
    if "feature_map" in fields:
        own |= feature_options(fields["feature_map"], options.features)
    vit = ViT(
        ViTConfig(
            image_size=options.image_size,
            patch_size=options.patch_size,
            variant=options.variant,
            num_classes=CLASSES,
            feature_options=own,
            encoding=encoding,
            **fields,
        )
    )
    if name != PLAIN:
        return vit
    try:
        return timm_vit(vit)
    except ImportError as error:
        raise ValueError(f"the plain ViT is timm's, which is not installed (pip install timm): {error}.") from error


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the option `--dtype`, the type that models compute in."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16: mixed precision, by autocast"
    )


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
    side, batch = options.image_size, options.batch_size
    images = torch.randn(batch, 3, side, side, device=device)
    targets = torch.randint(CLASSES, (batch,), device=device)
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    parameters: dict[tuple[str, str], float] = {}
    pairs = [(PLAIN, "absolute"), *itertools.product(options.models, options.encodings)]
    for name, encoding in pairs:
        model = build(name, options, encoding).to(device).train()
        parameters[name, encoding] = million_parameters(model)
        optimiser = torch.optim.AdamW(model.parameters())
        calls[name, encoding] = partial(step, model, optimiser, images, targets, options.dtype)
    times = time_in_turn(calls, options.rounds, device)
    for (name, encoding), seconds in times.items():
        median = statistics.median(seconds)
        yield {
            "model": name,
            "encoding": encoding,
            "parameters (M)": parameters[name, encoding],
            "ms": round(1000 * median, 1),
            "images/s": float(f"{batch / median:.4g}"),
            "to plain": round(median_ratio(seconds, times[pairs[0]]), 3),
        }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN)
