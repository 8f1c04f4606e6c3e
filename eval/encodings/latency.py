"""What does an encoding cost, in a training step and in folded inference, relative to RoPE?

All models are measured in turn, round after round, and RoPE again right after each. The speed of a machine drifts by
more than they differ. A ratio is the median over the rounds of a model's time over that of RoPE next to it. RoPE's
ratio to itself shows the noise. An encoding may have options behind its name, as in
`--encodings cayley-string 'cayley-string generator=banded bandwidth=4'`.

Columns: `encoding`, `parameters (M)` (of the model), `of the encoding` (parameters), `training step (ms)`, `step to
rope`, `folded inference (ms)`, `inference to rope`, `rotations (ms)` (of all layers, forward and not folded: angles,
and a basis with its solve or exponential).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eval.encodings.reports import LATENCY
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import CachedCall, Call, add_rounds, median_ratio, million_parameters, time_in_turn
from eval.speed.steps import training_step
from performer_string import ENCODINGS, VARIANTS, ViT, ViTConfig, fold
from performer_string.position.base import HeadWidthError
from performer_string.position.rotation import Rotation
from performer_string.utils.registry import lookup
from train.utils.progress import note, progress
from train.utils.ranges import at_least
from train.utils.yaml_file import read_value

REFERENCE = "rope"
SPARSE: dict[str, dict[str, Any]] = {
    f"cayley-string, {name}": {"generator": name} for name in ("block-diagonal", "banded", "top-k", "random")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval latency`."""
    names = "names, each followed by its options if any, like 'cayley-string generator=top-k k=8'; or all"
    parser.add_argument("--encodings", nargs="+", default=["all"], metavar="NAME", help=names)
    parser.add_argument("--variant", choices=VARIANTS, default="tiny")
    parser.add_argument("--image-size", type=at_least(1), default=224)
    parser.add_argument("--patch-size", type=at_least(1), default=16)
    parser.add_argument("--attention", default="linear")
    parser.add_argument("--features", type=int, default=64, help="random features per head")
    parser.add_argument("--qk-dim", type=at_least(1), help="width of queries and keys; default: that of the heads")
    parser.add_argument("--batch-size", type=at_least(1), default=8)
    add_rounds(parser, 7)


def chosen_encodings(names: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the name and options of each encoding, by its title, with the reference first."""
    known: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in ENCODINGS}
    known |= {title: ("cayley-string", o) for title, o in SPARSE.items()}
    titles = [title for name in names for title in (list(known) if name == "all" else [name])]
    for title in titles:
        if "=" in title:
            known[title] = with_options(title)
        lookup("encoding", title, known)
    return {title: known[title] for title in dict.fromkeys([REFERENCE, *titles])}


def with_options(title: str) -> tuple[str, dict[str, Any]]:
    """Return the name and options of an encoding from `NAME OPTION=VALUE ...`, with values as in a recipe.

    Raises:
        ValueError: an unknown name, or an option without a value.
    """
    name, *pairs = title.split()
    lookup("encoding", name, ENCODINGS)
    if bare := [pair for pair in pairs if not all(pair.partition("="))]:
        raise ValueError(f"options of an encoding are OPTION=VALUE, as in 'cayley-string k=8', not {bare[0]!r}.")
    return name, {option: read_value(value) for option, _, value in (pair.partition("=") for pair in pairs)}


class TimedModel:
    """A model with a training step and a folded inference to be timed.

    Attributes:
        step: function that takes a training step.
        infer: function that runs the folded model on the images.
    """

    def __init__(self, config: ViTConfig, batch_size: int, device: torch.device):
        torch.manual_seed(0)
        self.model = ViT(config).to(device)
        self.folded = fold(self.model)
        self.images = torch.randn(batch_size, config.in_channels, *self.model.train_image_size, device=device)
        self.step = training_step(self.model, config, batch_size, device)
        self.infer = CachedCall(self.folded, self.logits)

    @torch.inference_mode()
    def rotate(self) -> list[Rotation | None]:
        """Return the rotations of all layers of the unfolded model."""
        return self.model.rotations(self.model.layout(self.model.train_grid))

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """Return the logits of the folded model."""
        return cast(Tensor, self.folded(self.images))

    def check(self) -> None:
        """Check that the folded model has the same outputs, without which its time would be meaningless."""
        with torch.no_grad():
            torch.testing.assert_close(self.folded(self.images), self.model.eval()(self.images), rtol=1e-4, atol=1e-4)
        self.model.train()


def build_models(options: argparse.Namespace, device: torch.device) -> dict[str, TimedModel]:
    """Build a model for each encoding; one that does not fit the head dimension is reported and left out."""
    models: dict[str, TimedModel] = {}
    encodings = chosen_encodings(options.encodings).items()
    for title, (name, encoding_options) in progress(encodings, desc="building"):
        config = ViTConfig(
            image_size=options.image_size,
            patch_size=options.patch_size,
            variant=options.variant,
            attention=options.attention,
            feature_options={"num_features": options.features},
            encoding=name,
            encoding_options=encoding_options,
            qk_dim=options.qk_dim,
        )
        try:
            models[title] = TimedModel(config, options.batch_size, device)
        except HeadWidthError as error:
            if title == REFERENCE:
                raise
            note(f"{title} is left out: {error}")
            continue
        models[title].check()
    return models


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each encoding."""
    models = build_models(options, device)
    rope = models[REFERENCE]
    calls: dict[tuple[str, str, bool], Call] = {}  # (title, what is timed, whether it is the model or RoPE)
    for title, model in models.items():
        calls |= {(title, "step", True): model.step, (title, "step", False): rope.step}
        calls |= {(title, "infer", True): model.infer, (title, "infer", False): rope.infer}
        calls |= {(title, "rotate", True): model.rotate}
    times = time_in_turn(calls, options.rounds, device)
    for title, model in models.items():
        step, inference = times[title, "step", True], times[title, "infer", True]
        yield {
            "encoding": title,
            "parameters (M)": million_parameters(model.model),
            "of the encoding": sum(p.numel() for p in model.model.encoding.parameters()),
            "training step (ms)": round(1000 * statistics.median(step), 1),
            "step to rope": round(median_ratio(step, times[title, "step", False]), 3),
            "folded inference (ms)": round(1000 * statistics.median(inference), 1),
            "inference to rope": round(median_ratio(inference, times[title, "infer", False]), 3),
            "rotations (ms)": round(1000 * statistics.median(times[title, "rotate", True]), 3),
        }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, LATENCY)
