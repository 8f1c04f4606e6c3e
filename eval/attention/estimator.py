"""What does the attention of a trained model look like in each layer and head, and how does resolution change it?

The attention that a linear map implies is compared with exact softmax of the same rotated queries and keys. It is also
compared with the map's kernel in the limit of many features: that difference is the variance of the draw. What remains
of the difference to softmax is that the kernel is another one.

Columns: `model`, `resolution` (pixels), `tokens`, `layer`, `head`, `q norm`, `k norm` with its quantiles, `k norm of
blanks`, `entropy`, `entropy / log N`, `top share` (weight of the largest), `TV to softmax`, `TV to expected`, `TV
expected to softmax` (total variation, 0 to 1), `weight on blanks` (patches of one value), `distance` (mean, in
patches), `distance of uniform` and `share of blanks` (of equal weights), `images`, `split`, `trained at`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eval import checkpoints
from eval.attention.dense_attention import expected_backend
from eval.attention.reports import ESTIMATOR
from eval.evaluations import Evaluation
from eval.report import Row
from performer_string.layers.inspection import AttentionInputs, inspect_attention
from performer_string.models.vit.patches import blank_patches
from train.checkpoint import Trained
from train.data.sizes import Size
from train.testing import batches
from train.utils.ranges import at_least

QUANTILES = (0.01, 0.1, 0.5, 0.9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval estimator`."""
    checkpoints.add_arguments(parser, images=32)
    parser.add_argument("--queries", type=at_least(1), default=64, help="queries of each image (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of queries (default: 0)")


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """Return the total variation between rows of weights, from 0 to 1."""
    return (one - other).abs().sum(-1) / 2


def attention_statistics(
    inputs: AttentionInputs, queries: Tensor, positions: Tensor, blank: Tensor
) -> dict[str, Tensor]:
    """Return statistics of one layer's attention, each [B, H], averaged over queries.

    Args:
        inputs: queries, keys and backend of the layer.
        queries: indices of the patches whose queries are used, [R].
        positions: positions of the patches, [N, 2].
        blank: mask of the patches that have one value everywhere, [B, N].
    """
    q, k = inputs.rotated()
    prefix = k.shape[-2] - len(positions)
    some_q = q[:, :, prefix + queries]
    some = replace(inputs, q=some_q, k=k, rotation=None)
    weights, softmax = some.weights().float(), some.exact_weights()  # [B, H, R, P + N]
    limit = expected_backend(inputs.backend)
    kernel = torch.full_like(weights, torch.nan) if limit is None else replace(some, backend=limit).weights()

    norms, blanks = k.norm(dim=-1), blank[:, None].to(k)  # [B, H, P + N], [B, 1, N]
    entropy = -torch.special.xlogy(weights, weights.clamp_min(0)).sum(-1).mean(-1)
    on_patches = weights[..., prefix:]
    distances = torch.cdist(positions[queries], positions)  # [R, N]
    return {
        "q norm": q.norm(dim=-1).mean(-1),
        "k norm": norms.mean(-1),
        **{f"k norm, {share:.0%}": norms.quantile(share, dim=-1) for share in QUANTILES},
        "k norm of blanks": (norms[..., prefix:] * blanks).sum(-1) / blanks.sum(-1),  # NaN where there are none
        "entropy": entropy,
        "entropy / log N": entropy / torch.tensor(k.shape[-2]).log(),
        "top share": weights.amax(-1).mean(-1),
        "TV to softmax": total_variation(weights, softmax).mean(-1),
        "TV to expected": total_variation(weights, kernel).mean(-1),
        "TV expected to softmax": total_variation(kernel, softmax).mean(-1),
        "weight on blanks": (on_patches * blanks[:, :, None]).sum(-1).mean(-1),
        "distance": ((on_patches * distances).sum(-1) / on_patches.sum(-1)).mean(-1),
    }


@torch.inference_mode()
def study(
    trained: Trained, size: Size, options: argparse.Namespace, device: torch.device
) -> tuple[list[dict[str, Tensor]], dict[str, Any]]:
    """Return the statistics of each layer on images of one size, [H] each, and the columns that all layers share."""
    vit = trained.classifier.vit.to(device)
    positions = vit.grid_positions(vit.grid(*size), device)
    generator = torch.Generator().manual_seed(options.seed)
    queries = torch.randperm(len(positions), generator=generator)[: options.queries].to(device)
    by_batch: list[list[dict[str, Tensor]]] = []
    blanks, total = 0.0, 0
    for images, _ in batches(trained, size, options.split, options.images, device):
        blank = blank_patches(images, vit.patch)
        probes = inspect_attention(vit, images)
        by_batch.append([attention_statistics(probe, queries, positions, blank) for probe in probes])
        blanks, total = blanks + float(blank.float().mean(-1).sum()), total + len(images)
    layers = [
        {name: torch.cat([batch[layer][name] for batch in by_batch]).nanmean(0) for name in by_batch[0][layer]}
        for layer in range(len(vit.blocks))
    ]
    distance = float(torch.cdist(positions[queries], positions).mean())
    return layers, {
        "distance of uniform": round(distance, 4),
        "share of blanks": round(blanks / total, 4),
        "images": total,
        "split": options.split,
        "trained at": Size.of(trained.data.size),
    }


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model, resolution, layer and head."""
    for trained, size in checkpoints.at_each_size(checkpoints.load_models(options, values=True), options):
        layers, shared = study(trained, size, options, device)
        for layer, values in enumerate(layers):
            for head in range(len(values["entropy"])):
                yield {
                    "model": trained.name,
                    "resolution": size,
                    "tokens": math.prod(trained.classifier.vit.grid(*size)),
                    "layer": layer,
                    "head": head,
                    **{name: round(float(value[head]), 6) for name, value in values.items()},
                    **shared,
                }


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, ESTIMATOR)
