"""What does the attention of a trained model look like in each layer and head, and how does resolution change it?

The attention that a linear map implies is compared with exact softmax of the same rotated queries and keys. It is also
compared with the map's kernel in the limit of many features: that difference is the variance of the draw. What remains
of the difference to softmax is that the kernel is another one.

Columns: `model`, `resolution`, `tokens`, `layer`, `head`, `q norm`, `k norm` with its quantiles, `k norm of blanks`,
`entropy`, `entropy / log N`, `top share` (weight of the largest), `TV to softmax`, `TV to expected`, `TV expected to
softmax` (total variation, 0 to 1), `weight on blanks` (patches of one value), `distance` (mean, in patches), `distance
of uniform` and `share of blanks` (of equal weights), `images`, `split`, `trained at`.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from eval import checkpoints
from eval.attention.dense_attention import expected_backend
from eval.attention.token_interventions import blank_patches
from eval.plotting.accuracy import split_of
from eval.plotting.axes import legend_above, mark_training, note_below, size_axis
from eval.plotting.style import GREY, line_styles, panels
from eval.report import Row, select, unique
from performer_string.ops import reference
from performer_string.ops.rotary import rotate_pair
from train.checkpoint import Trained
from train.data.sizes import Size, ascending
from train.inspection import AttentionInputs, inspect_attention

QUANTILES = (0.01, 0.1, 0.5, 0.9)
TITLES = {  # of the columns that are in the table and the plot, averaged over heads
    "k norm": "norm of keys",
    "entropy / log N": "entropy / log N",
    "top share": "share of the top token",
    "weight on blanks": "weight on blank patches",
    "TV to softmax": "TV to softmax",
    "TV to expected": "TV to the expected kernel",
    "distance": "mean distance in patches",
}
OF_EQUAL_WEIGHTS = {"weight on blanks": "share of blanks", "distance": "distance of uniform"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval estimator`."""
    checkpoints.add_arguments(parser, images=32)
    parser.add_argument("--queries", type=int, default=64, help="rows of attention an image (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of queries")


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """Return the total variation between rows of weights, 0 to 1."""
    return (one - other).abs().sum(-1) / 2


def attention_statistics(
    inputs: AttentionInputs, queries: Tensor, positions: Tensor, blank: Tensor
) -> dict[str, Tensor]:
    """Return statistics of one layer's attention, each [B, H], averaged over queries.

    Args:
        inputs: queries, keys and backend of the layer.
        queries: indices of the patches whose queries are looked at, [R].
        positions: of the patches, [N, 2].
        blank: which patches have one value everywhere, [B, N].
    """
    q, k = rotate_pair(inputs.q, inputs.k, inputs.rotation)
    prefix = k.shape[-2] - len(positions)
    some_q = q[:, :, prefix + queries]
    weights = inputs.backend.weights(some_q, k, key_bias=inputs.key_bias).float()  # [B, H, R, P + N]
    softmax = reference.softmax_weights(some_q, k, key_bias=inputs.key_bias)
    limit = expected_backend(inputs.backend)
    kernel = torch.full_like(weights, torch.nan)
    if limit is not None:
        kernel = limit.weights(some_q, k, key_bias=inputs.key_bias)

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


class ModelStatistics(NamedTuple):
    """The attention of a model on images of one size.

    Attributes:
        layers: statistics of each layer, [H] each.
        share_of_blanks: how many patches have one value everywhere.
        uniform_distance: the mean distance of equal weights, in patches.
        images: how many there were.
    """

    layers: list[dict[str, Tensor]]
    share_of_blanks: float
    uniform_distance: float
    images: int


@torch.inference_mode()
def study(trained: Trained, size: Size, options: argparse.Namespace, device: torch.device) -> ModelStatistics:
    """Measure the attention of a model on images of one size."""
    vit = trained.classifier.vit.to(device)
    positions = vit.grid_positions(vit.grid(*size), device)
    generator = torch.Generator().manual_seed(options.seed)
    queries = torch.randperm(len(positions), generator=generator)[: options.queries].to(device)
    by_batch: list[list[dict[str, Tensor]]] = []
    blanks, total = 0.0, 0
    for images, _ in checkpoints.batches(trained, size, options, device):
        blank = blank_patches(vit, images)
        probes = inspect_attention(vit, images)
        by_batch.append([attention_statistics(probe, queries, positions, blank) for probe in probes])
        blanks, total = blanks + float(blank.float().mean(-1).sum()), total + len(images)
    layers = [
        {name: torch.cat([batch[layer][name] for batch in by_batch]).nanmean(0) for name in by_batch[0][layer]}
        for layer in range(len(vit.blocks))
    ]
    uniform_distance = float(torch.cdist(positions[queries], positions).mean())
    return ModelStatistics(layers, blanks / total, uniform_distance, total)


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each model, resolution, layer and head."""
    if options.queries < 1:
        raise ValueError(f"--queries has to be 1 or more, not {options.queries}.")
    for trained in checkpoints.load_models(options):
        for size in options.resolutions:
            measured = study(trained, size, options, device)
            for layer, values in enumerate(measured.layers):
                for head in range(len(values["entropy"])):
                    yield {
                        "model": trained.name,
                        "resolution": size,
                        "tokens": math.prod(trained.classifier.vit.grid(*size)),
                        "layer": layer,
                        "head": head,
                        **{name: round(float(value[head]), 6) for name, value in values.items()},
                        "distance of uniform": round(measured.uniform_distance, 4),
                        "share of blanks": round(measured.share_of_blanks, 4),
                        "images": measured.images,
                        "split": options.split,
                        "trained at": Size.of(trained.data.size),
                    }


def mean_of(rows: Sequence[Row], column: str, **wanted: object) -> float:
    """Return the mean of a column over the rows that have these values."""
    values = [row[column] for row in select(rows, **wanted)]
    return float(sum(values) / len(values))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each model, layer and resolution, averaged over heads."""
    keys = ("model", "layer", "resolution")
    groups = [{key: row[key] for key in keys} for row in rows if row["head"] == 0]
    return [
        {**group, **{name: f"{mean_of(rows, name, **group):.3g}" for name in TITLES if measured(rows, name)}}
        for group in sorted(groups, key=lambda group: tuple(group.values()))
    ]


def plot(rows: Sequence[Row]) -> Figure:
    """Draw each statistic over image size, or over layers where there is one size.

    A colour is a layer, and a line style a model; at one size both are the model's. Grey is what equal weights have.
    """
    titles = {name: title for name, title in TITLES.items() if measured(rows, name)}
    sizes = ascending(row["resolution"] for row in rows)
    models, layers = unique(rows, "model"), sorted(unique(rows, "layer"))
    figure, axes = panels(len(titles), columns=3, height=2.0)
    colours, styles = line_styles(layers), line_styles(models)
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for model, layer in itertools.product(models, layers if len(sizes) > 1 else ["all"]):
            if len(sizes) > 1:
                style = {**styles[model], "color": colours[layer]["color"]}
                of_model = select(rows, model=model, layer=layer)
                points = {size.side: mean_of(of_model, name, resolution=size) for size in sizes if of_model}
            else:
                style = styles[model]
                of_model = select(rows, model=model)
                points = {layer: mean_of(of_model, name, layer=layer) for layer in unique(of_model, "layer")}
            axis.plot(list(points), list(points.values()), **style)
        if len(sizes) > 1:
            size_axis(axis, sizes)
            mark_training(axis, rows, named=False)
        else:
            axis.set(xlabel="layer", xticks=layers)
        if name in OF_EQUAL_WEIGHTS:
            draw_equal_weights(axis, rows, OF_EQUAL_WEIGHTS[name], sizes, layers)
        axis.set_title(title)
    handles = [
        Line2D([], [], label=model, **(style if len(sizes) == 1 else {**style, "color": GREY}))
        for model, style in styles.items()
    ]
    if len(sizes) > 1:
        handles += [Line2D([], [], label=f"layer {layer}", color=style["color"]) for layer, style in colours.items()]
    legend_above(figure, handles=[*handles, Line2D([], [], label="equal weights", color=GREY, linewidth=0.8)])
    trained = "; vertical line: training size" if len(sizes) > 1 else ""
    size = f" of {sizes[0]} px" if len(sizes) == 1 else ""
    note_below(
        figure, f"{split_of(rows)}{rows[0]['images']} images{size}; means over heads; TV: total variation{trained}"
    )
    return figure


def measured(rows: Sequence[Row], name: str) -> bool:
    """Return whether a statistic says anything: photographs have few blank patches, and not each kernel is known."""
    if name == "weight on blanks":
        return any(row["share of blanks"] > 0.1 for row in rows)
    return any(not math.isnan(row[name]) for row in rows)


def draw_equal_weights(
    axis: Axes, rows: Sequence[Row], column: str, sizes: Sequence[Size], layers: Sequence[int]
) -> None:
    """Draw what equal weights would have."""
    equal = [mean_of(rows, column, resolution=size) for size in sizes]
    x, y = ([size.side for size in sizes], equal) if len(sizes) > 1 else ([layers[0], layers[-1]], equal * 2)
    axis.plot(x, y, color=GREY, linewidth=0.8, label="equal weights")
