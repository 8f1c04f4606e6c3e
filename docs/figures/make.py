"""Draw the pictures of the concept pages from the library itself, without any training.

python -m docs.figures.make            # all of them, into docs/figures
python -m docs.figures.make string     # one of them
python -m docs.figures.make --format pdf svg --out FOLDER
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from docs.figures.style import main
from performer_string import build_encoding, build_feature_map, build_locality, grid_positions
from train.figure_style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION

HEAD = 16  # width of a head in the pictures


def logits_over_plane(name: str, side: int = 41, seed: int = 0, **options: object) -> Tensor:
    """Return the score of a token in the middle with equal tokens all over the plane, mean of 64 contents.

    Args:
        name, options: of the encoding.
        side: number of positions along each axis, half a patch apart.
        seed: of the encoding's parameters and of the contents.

    Returns:
        Scores as a share of that in the middle, [side, side].
    """
    torch.manual_seed(seed)
    encoding = build_encoding(name, head_dim=HEAD, num_heads=1, **options).eval()
    positions = (grid_positions((side, side)) - side // 2) / 2
    content = torch.randn(64, 1, 1, HEAD)
    with torch.no_grad():
        tokens = encoding(positions).rotate(content.expand(-1, -1, side * side, -1))
    middle = tokens[:, :, side * side // 2, None]
    scores = (tokens * middle).sum(-1) / (middle * middle).sum(-1)
    return scores.mean((0, 1)).reshape(side, side)


def string() -> Figure:
    """R(r) as a product, and the score over the plane for four encodings."""
    torch.manual_seed(0)
    encoding = build_encoding("circulant-string", head_dim=HEAD, num_heads=1).eval()
    with torch.no_grad():
        rotation = encoding(torch.tensor([[1.5, -1.0]]))
        whole, basis = rotation.matrix()[0, 0], encoding.basis()[0]
        middle = basis.T @ whole @ basis
    figure, axes = plt.subplots(2, 4, figsize=(7.2, 4.0))
    parts = {"R(r)": whole, "=  B": basis, "Rot(Ω r)": middle, "Bᵀ": basis.T}
    for ax, (title, matrix) in zip(axes[0], parts.items(), strict=True):
        ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])
    for ax, name in zip(axes[1], ("rope", "rope-mixed", "circulant-string", "cayley-string"), strict=True):
        ax.imshow(logits_over_plane(name), cmap="RdBu_r", vmin=-1, vmax=1, extent=(-10, 10, 10, -10))
        ax.set_title(name, fontsize=9)
        ax.set(xticks=[-10, 0, 10], yticks=[-10, 0, 10])
    axes[1, 0].set_ylabel("offset in patches")
    for row, what in zip(axes, ("entry of the matrix", "score, 1 in the middle"), strict=True):
        figure.colorbar(row[0].images[0], ax=row, label=what, ticks=[-1, 0, 1], aspect=12, pad=0.02, shrink=0.6)
    return figure


def random_features() -> Figure:
    """The kernels that feature maps estimate over the angle, and the error of one draw over the number of features."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0))
    angles = torch.linspace(0, torch.pi, 181)
    norm = 3.0
    q = norm * torch.nn.functional.one_hot(torch.zeros(1, dtype=torch.long), HEAD).float()[None, None]
    k = norm * torch.cat([angles.cos()[:, None], angles.sin()[:, None], torch.zeros(181, HEAD - 2)], -1)[None, None]
    kinds = {
        "softmax": ("favor+", {"num_features": 16}, ORANGE),
        "arc-cosine, order 1": ("arc-cosine", {"num_features": 16, "order": 1}, PURPLE),
        "arc-cosine, order 4": ("arc-cosine", {"num_features": 16, "order": 4}, BLUE),
        "polynomial": ("polynomial", {}, GREEN),
    }
    for label, (name, options, colour) in kinds.items():
        phi = build_feature_map(name, head_dim=HEAD, num_heads=1, **options)
        kernel = phi.log_kernel(q, k)[0, 0, 0].exp()
        left.plot(angles.rad2deg(), kernel / kernel[0], color=colour, label=label)
    left.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    left.set(xlabel="angle between query and key in degrees", ylabel="kernel, 1 at angle 0")
    left.set_xticks([0, 45, 90, 135, 180])
    counts = [16, 32, 64, 128, 256, 512]
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, 1, 64, HEAD) / 2
    for label, (name, options, colour) in list(kinds.items())[:3]:
        errors = []
        for count in counts:
            draws = [
                build_feature_map(name, head_dim=HEAD, num_heads=1, seed=seed, **{**options, "num_features": count})
                for seed in range(8)
            ]
            exact = draws[0].log_kernel(q, k).exp()
            estimates = torch.stack([phi.queries(q) @ phi.keys(k).mT for phi in draws])
            errors.append(((estimates - exact).square().mean() / exact.square().mean()).sqrt().item())
        right.loglog(counts, errors, marker="o", color=colour)
        below = label == "arc-cosine, order 1"
        shown = "FAVOR+ (softmax)" if label == "softmax" else label
        at = 0 if below else 1
        right.annotate(shown, (counts[at], errors[at]), (-4, -46 if below else 8), color=colour, **TEXT)
    right.set(xlabel="features", ylabel="relative error of one draw", xticks=counts)
    right.set_xticks(counts, [str(count) for count in counts])
    right.set_xticks([], minor=True)
    return figure


def invariance() -> Figure:
    """The largest change of a score when all positions move together, and its fall with the number of draws."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 30, HEAD, dtype=torch.float64)
    positions = torch.rand(30, 2, dtype=torch.float64) * 8
    moves = torch.linspace(0.25, 8, 32, dtype=torch.float64)
    encoding = build_encoding("circulant-string", head_dim=HEAD, num_heads=1).double().eval()
    kind = {"head_dim": HEAD, "num_heads": 1, "num_features": 64}
    maps = [build_feature_map("favor+", seed=seed, **kind).double() for seed in range(256)]

    def rotated(name: str) -> Callable[[Tensor], Tensor]:
        other = build_encoding(name, head_dim=HEAD, num_heads=1).double().eval()
        return lambda r: other(r).rotate(q) @ other(r).rotate(k).mT

    def drawn(draws: list) -> Callable[[Tensor], Tensor]:
        def score(r: Tensor) -> Tensor:
            rq, rk = encoding(r).rotate(q / 3), encoding(r).rotate(k / 3)
            return torch.stack([phi.queries(rq) @ phi.keys(rk).mT for phi in draws]).mean(0)

        return score

    def change(score: Callable[[Tensor], Tensor], move: Tensor) -> float:
        start = score(positions)
        return float((score(positions + move) - start).abs().max() / start.abs().max())

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0))
    lines = {
        "liere": (rotated("liere"), VERMILLION, 18),
        "circulant-string, one draw": (drawn(maps[:1]), ORANGE, -26),
        "circulant-string": (rotated("circulant-string"), BLUE, 10),
    }
    with torch.no_grad():
        for label, (score, colour, above) in lines.items():
            values = [change(score, move) for move in moves]
            left.semilogy(moves, values, color=colour)
            left.annotate(label, (8, values[-1]), (0, above), color=colour, ha="right", **TEXT)
        counts = [1, 4, 16, 64, 256]
        spread = [sum(change(drawn(maps[:count]), move) for move in moves[3::7]) / 5 for count in counts]
    left.set(xlabel="common move in patches", ylabel="largest change of a score", ylim=(1e-17, 1e5))
    right.loglog(counts, spread, marker="o", color=ORANGE)
    right.loglog(counts, [spread[0] / count**0.5 for count in counts], linestyle=":", color=GREY)
    right.annotate("1 / sqrt(draws)", (16, spread[0] / 4), (-4, -16), color=GREY, ha="right", **TEXT)
    right.set(xlabel="draws of features averaged over", title="circulant-string, mean of draws")
    right.set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
    right.set_yticks([], minor=True)
    right.set_xticks(counts, [str(count) for count in counts])
    right.set_xticks([], minor=True)
    return figure


def resolution() -> Figure:
    """Positions of a larger image: extrapolated, interpolated, and drawn at random in training."""
    torch.manual_seed(0)
    train, large = (6, 6), (12, 12)
    axis = torch.stack([torch.randperm(12)[:6].sort().values for _ in range(2)]).float()
    drawn = torch.stack(torch.meshgrid(axis[0], axis[1], indexing="ij"), -1).reshape(-1, 2)
    panels = {
        "training grid": (grid_positions(train), BLUE),
        "extrapolate\n(the default)": (grid_positions(large), ORANGE),
        "interpolate": (grid_positions(large, mode="interpolate", train_grid=train), GREEN),
        "randomized_positions\nin training": (drawn, PURPLE),
    }
    figure, axes = plt.subplots(1, 4, figsize=(7.2, 2.3), sharex=True, sharey=True)
    for ax, (title, (positions, colour)) in zip(axes, panels.items(), strict=True):
        ax.add_patch(plt.Rectangle((-0.5, -0.5), 6, 6, color=GREY, alpha=0.15, linewidth=0))
        ax.plot(positions[:, 1], positions[:, 0], "o", color=colour, markersize=2.5)
        ax.set_title(title, fontsize=9)
        ax.set(aspect="equal", xlim=(-1, 12), ylim=(12, -1), xticks=[0, 5, 11], yticks=[0, 5, 11])
    axes[0].set_ylabel("position in patches")
    return figure


def attention() -> Figure:
    """The weight of one matching key among more and more others, by kernel."""
    counts = [2**n for n in range(5, 13)]
    angle = torch.tensor(1.2)  # of the others to the query, in radians; the match is at 0
    norm = 2.5
    q = norm * torch.nn.functional.one_hot(torch.tensor([0]), HEAD).float()[None, None]
    others = norm * torch.cat([angle.cos()[None], angle.sin()[None], torch.zeros(HEAD - 2)])[None, None, None]

    def weights(name: str, short: float = 1.0, growth: bool = False, **options: object) -> list[float]:
        phi = build_feature_map(name, head_dim=HEAD, num_heads=1, **options)
        gap = (phi.log_kernel(q, q) - phi.log_kernel(q, others * short)).item()
        factors = [math.log(n) / math.log(counts[0]) if growth else 1.0 for n in counts]
        return [1 / (1 + (n - 1) * math.exp(-gap * f)) for n, f in zip(counts, factors, strict=True)]

    lines = {
        "softmax": (weights("favor+", scale=1.0), VERMILLION, "-"),
        "softmax, log N": (weights("favor+", growth=True, scale=1.0), VERMILLION, "--"),
        "arc-cosine, order 1": (weights("arc-cosine", order=1), PURPLE, "-"),
        "arc-cosine, order 4": (weights("arc-cosine", order=4), BLUE, "-"),
        "order 4, others gated by 1 / 256": (weights("arc-cosine", short=0.25, order=4), BLUE, "--"),
    }
    figure, ax = plt.subplots(figsize=(6.4, 3.4))
    for label, (values, colour, line) in lines.items():
        ax.plot(counts, values, line, color=colour)
        ax.annotate(label, (counts[-1], values[-1]), (4, -3), color=colour, annotation_clip=False, **TEXT)
    ax.set(
        xscale="log", yscale="log", ylim=(1e-4, 1.5), xlabel="number of keys", ylabel="weight of the one that matches"
    )
    ax.set_xticks([32, 128, 512, 2048], ["32", "128", "512", "2,048"])
    ax.set_xticks([], minor=True)
    return figure


def decays() -> Figure:
    """The three decays over the distance, as they start."""
    figure, ax = plt.subplots(figsize=(6, 2.8))
    distance = torch.linspace(0, 16, 161)
    offsets = torch.stack([distance, torch.zeros_like(distance)], -1)
    with torch.no_grad():
        for name, colour, line in (("gaussian", BLUE, "-"), ("exponential", ORANGE, "--"), ("radial", GREEN, "-.")):
            options = {} if name == "radial" else {"sigma": 4.0}
            values = build_locality(name, num_heads=1, **options).of_offsets(offsets)[0]
            ax.plot(distance, values, line, color=colour, label=name)
    ax.legend(frameon=False)
    ax.set(xlabel="distance in patches", ylabel="weight of a value", ylim=(0, None))
    return figure


TEXT = {"textcoords": "offset points", "fontsize": 9}
FIGURES = {"string": string, "random-features": random_features, "invariance": invariance, "resolution": resolution}
FIGURES |= {"attention": attention, "decays": decays}

if __name__ == "__main__":
    main(FIGURES, "python -m docs.figures.make")
