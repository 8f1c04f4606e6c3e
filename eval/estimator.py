"""What the attention of a trained model looks like in each layer and head, and how that changes with resolution.

The attention a linear map implies is compared with the exact softmax of the same rotated queries and keys, and with
the map's own kernel in the limit of many features: the second difference is the variance of the draw, and what of the
first it does not explain is another kernel.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eval import checkpoints
from eval.dense import expected
from eval.report import Row, mark_training, save_figure
from eval.tokens import blank_patches
from performer_string.ops import reference
from performer_string.ops.rotary import rotate_pair
from train.checkpoint import Trained
from train.data.sizes import Size, ascending
from train.inspection import AttentionInputs as Probe
from train.inspection import inspect_attention as probe_attention

HELP = "norms, entropy, sharpness and error of each layer's and head's attention, per resolution"
QUANTILES = (0.01, 0.1, 0.5, 0.9)
DRAWN = {  # in the table and the plot, averaged over heads
    "k norm": "norm of keys",
    "entropy / log N": "entropy / log N",
    "top share": "share of the top token",
    "weight on blanks": "weight on blank patches",
    "TV to softmax": "total variation to softmax",
    "TV to expected": "total variation to the expected kernel",
    "distance": "mean distance in patches",
}
UNIFORM = {"weight on blanks": "share of blanks", "distance": "distance of uniform"}  # if all tokens weighed alike
result_directory = checkpoints.result_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoints.add_arguments(parser, split="val", images=32)
    parser.add_argument("--queries", type=int, default=64, help="rows of attention an image (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of queries")


def variation(one: Tensor, two: Tensor) -> Tensor:
    """Total variation between rows of weights, 0 to 1."""
    return (one - two).abs().sum(-1) / 2


def statistics(probe: Probe, rows: Tensor, positions: Tensor, blank: Tensor) -> dict[str, Tensor]:
    """Statistics of one layer's attention, each [B, H], averaged over queries.

    Args:
        probe: what the layer was given.
        rows: indices of the patches whose queries are looked at, [R].
        positions: of the patches, [N, 2].
        blank: which patches are, [B, N].
    """
    q, k = rotate_pair(probe.q, probe.k, probe.rotation)
    prefix = k.shape[-2] - len(positions)
    chosen = q[:, :, prefix + rows]
    weights = probe.backend.weights(chosen, k, key_bias=probe.key_bias).float()  # [B, H, R, P + N]
    softmax = reference.softmax_weights(chosen, k, key_bias=probe.key_bias)
    limit = expected(probe.backend)
    kernel = torch.full_like(weights, torch.nan)
    if limit is not None:
        kernel = limit.weights(chosen, k, key_bias=probe.key_bias)

    norms, blanks = k.norm(dim=-1), blank[:, None].to(k)  # [B, H, P + N], [B, 1, N]
    entropy = -torch.special.xlogy(weights, weights.clamp_min(0)).sum(-1).mean(-1)
    on_patches = weights[..., prefix:]
    apart = torch.cdist(positions[rows], positions)  # [R, N]
    found = {"q norm": q.norm(dim=-1).mean(-1), "k norm": norms.mean(-1)}
    found |= {f"k norm, {share:.0%}": norms.quantile(share, dim=-1) for share in QUANTILES}
    found["k norm of blanks"] = (norms[..., prefix:] * blanks).sum(-1) / blanks.sum(-1)  # NaN where there are none
    return found | {
        "entropy": entropy,
        "entropy / log N": entropy / torch.tensor(k.shape[-2]).log(),
        "top share": weights.amax(-1).mean(-1),
        "TV to softmax": variation(weights, softmax).mean(-1),
        "TV to expected": variation(weights, kernel).mean(-1),
        "TV expected to softmax": variation(kernel, softmax).mean(-1),
        "weight on blanks": (on_patches * blanks[:, :, None]).sum(-1).mean(-1),
        "distance": ((on_patches * apart).sum(-1) / on_patches.sum(-1)).mean(-1),
    }


@torch.inference_mode()
def measure(
    trained: Trained, size: Size, options: argparse.Namespace, device: torch.device
) -> tuple[list[dict[str, Tensor]], float, float, int]:
    """(statistics of each layer [H], share of blank patches, mean distance of uniform attention, images)."""
    vit = trained.classifier.vit.to(device)
    positions = vit.grid_positions(vit.grid(*size), device)
    generator = torch.Generator().manual_seed(options.seed)
    rows = torch.randperm(len(positions), generator=generator)[: options.queries].to(device)
    found: list[list[dict[str, Tensor]]] = []
    blanks, total = 0.0, 0
    for images, _ in checkpoints.batches(trained, size, options, device):
        blank = blank_patches(vit, images)
        probes = probe_attention(vit, images)
        found.append([statistics(probe, rows, positions, blank) for probe in probes])
        blanks, total = blanks + float(blank.float().mean(-1).sum()), total + len(images)
    layers = [
        {name: torch.cat([batch[layer][name] for batch in found]).nanmean(0) for name in found[0][layer]}
        for layer in range(len(vit.blocks))
    ]
    return layers, blanks / total, float(torch.cdist(positions[rows], positions).mean()), total


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """A row for each model, resolution, layer and head."""
    if options.queries < 1:
        raise ValueError(f"--queries has to be 1 or more, not {options.queries}.")
    for trained in checkpoints.load_models(options):
        for size in options.resolutions:
            layers, blanks, uniform, images = measure(trained, size, options, device)
            vit = trained.classifier.vit
            for layer, values in enumerate(layers):
                for head in range(len(values["entropy"])):
                    yield {
                        "model": checkpoints.name_of(trained.path),
                        "resolution": size,
                        "tokens": math.prod(vit.grid(*size)),
                        "layer": layer,
                        "head": head,
                        **{name: round(float(value[head]), 6) for name, value in values.items()},
                        "distance of uniform": round(uniform, 4),
                        "share of blanks": round(blanks, 4),
                        "images": images,
                        "trained at": Size.of(trained.data.size),
                    }


def over_heads(found: Sequence[Row], name: str, **where: object) -> float:
    chosen = [row[name] for row in found if all(row[key] == value for key, value in where.items())]
    return float(sum(chosen) / len(chosen))


def summary(found: Sequence[Row]) -> list[Row]:
    """A row for each model, layer and resolution, averaged over heads."""
    keys = ("model", "layer", "resolution")
    return [
        {**where, **{name: f"{over_heads(found, name, **where):.3g}" for name in DRAWN}}
        for where in sorted(
            ({key: row[key] for key in keys} for row in found if row["head"] == 0), key=lambda w: tuple(w.values())
        )
    ]


def plot(found: Sequence[Row], path: Path) -> None:
    """Each statistic over resolution, a line for each layer (colour) of each model (style and marker); in grey what it
    would be if all tokens weighed alike."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.4))
    axes = figure.subplots(2, (len(DRAWN) + 1) // 2).flat
    sizes = ascending(row["resolution"] for row in found)
    sides = [size.side for size in sizes]
    models = list(dict.fromkeys(row["model"] for row in found))
    for axis, (name, title) in zip(axes, DRAWN.items(), strict=False):
        for i, model in enumerate(models):
            for layer in sorted({row["layer"] for row in found if row["model"] == model}):
                values = [over_heads(found, name, model=model, layer=layer, resolution=size) for size in sizes]
                look = {"ls": ("-", "--", ":", "-.")[i % 4], "marker": "os^DvP*X"[i % 8], "color": f"C{layer % 10}"}
                axis.plot(sides, values, label=f"{model}, layer {layer}", **look)
        if name in UNIFORM:
            alike = [over_heads(found, UNIFORM[name], resolution=size) for size in sizes]
            axis.plot(sides, alike, color="grey", linewidth=0.8, label="if all weighed alike")
        mark_training(axis, found)
        axis.set(title=title, xlabel="resolution in pixels")
        axis.set_ylim(bottom=0)  # now that all is drawn
        axis.set_xticks(sides, [str(size) for size in sizes])
    for axis in figure.axes[len(DRAWN) :]:
        axis.axis("off")
    named = figure.axes[list(DRAWN).index("distance")].get_legend_handles_labels()  # of all layers, and the grey line
    figure.legend(*named, loc="lower right", fontsize=7)
    figure.tight_layout()
    save_figure(figure, path)
