"""Measure in float64 how a translation of all positions changes scores, kernel estimates and logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from eval.model_changes import ModelChanges
from eval.report import Row
from performer_string import ENCODINGS, FEATURE_MAPS, ViT, ViTConfig, build_encoding, build_feature_map, grid_positions
from performer_string.feature_maps import FeatureMap, RandomFeatures
from performer_string.layers.values.transport import TransportedValues
from performer_string.position import Encoding, SeparableEncoding
from performer_string.position.additive import NoEncoding
from performer_string.position.skew import cayley
from train.utils.progress import note, progress

DRAWS = (1, 4, 16, 64, 256, 1024)  # numbers of draws of random features that are averaged over
SHIFT = 3.37  # translation of all positions, in patches
EXACT = 1e-9  # bound on rounding in float64, relative to the largest score
VARIANTS: dict[str, list[dict[str, Any]]] = {  # options besides each family's defaults
    "cayley-string": [{"generator": g} for g in ("block-diagonal", "banded", "top-k", "random")],
    "pate-so2": [{"conformal_scaling": 0.5}],
    "liere": [{"block_size": 2}],
}
MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "favor+": ("favor+", {}),
    "favor+hyperbolic": ("favor+hyperbolic", {}),
    **{f"arc-cosine, order {p}": ("arc-cosine", {"order": p}) for p in (1, 4, 8)},
    "polynomial": ("polynomial", {}),
    "polynomial, lower orders": ("polynomial", {"lower": True}),
}


def label(name: str, options: dict[str, Any]) -> str:
    """Return the title of an encoding with options."""
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])


def make_row(part: str, name: str, quantity: str, value: float, expected: str) -> Row:
    """Return the row of one measurement, with whether it is as expected.

    Args:
        part: scores, generators, features or models.
        name: name of the encoding, feature map or model.
        quantity: measured quantity.
        value: relative change of the quantity.
        expected: "exact", "fails by design", "one draw", "1/sqrt(draws)", "not known" or "".
    """
    holds = {"exact": value < EXACT, "fails by design": value > 1e-6}.get(expected, "")
    return {"part": part, "name": name, "quantity": quantity, "value": value, "expected": expected, "holds": holds}


def scores(encoding: Encoding, positions: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the scores of queries and keys [B, H, N, d] at positions; an additive encoding is added to both."""
    added = encoding.embedding(positions)
    if added is not None:
        x = added.unflatten(-1, (encoding.num_heads, encoding.head_dim)).transpose(0, 1)
        return (q + x) @ (k + x).mT
    rotation = encoding(positions)
    return rotation.rotate(q) @ rotation.rotate(k).mT


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the largest change of a score or logit, relative to the largest one."""
    return float((after - before).abs().max() / before.abs().max())


def change_of_scores(encoding: Encoding, coord: int) -> float:
    """Return the relative change of scores under a translation along the axis `coord`, of an encoding in float64."""
    positions = torch.rand(12, encoding.coord_dim, dtype=torch.float64) * 5
    moved = positions.clone()
    moved[:, coord] += SHIFT
    q, k = torch.randn(2, 1, encoding.num_heads, 12, encoding.head_dim, dtype=torch.float64)
    return relative_change(scores(encoding, positions, q, k), scores(encoding, moved, q, k))


@torch.no_grad()
def commutator(encoding: Encoding) -> float:
    """Return the largest entry of the commutators [L_j, L_k] of the generators, over all pairs of axes."""
    parts = encoding.generators().double().unbind(1)
    return max((float((a @ b - b @ a).abs().max()) for a in parts for b in parts), default=0.0)


def expected_of_encoding(name: str, encoding: Encoding) -> str:
    """Return the expected change of an encoding's scores under a translation."""
    if name in ("absolute", "sinusoidal") or getattr(encoding, "log_lambda", None) is not None:
        return "fails by design"
    if isinstance(encoding, SeparableEncoding | NoEncoding):
        return "exact"
    return expected_of_commutator(commutator(encoding)) if has_generators(encoding) else "not known"


def expected_of_commutator(largest: float) -> str:
    """Return the expected change of scores for an encoding by exponentials of generators with this commutator."""
    return "exact" if largest < EXACT else "fails by design"


def has_generators(encoding: Encoding) -> bool:
    """Return whether an encoding defines its generators, which only evaluations need."""
    try:
        encoding.generators()
    except NotImplementedError:
        return False
    return True


def measure_encodings(head_dim: int) -> Iterator[Row]:
    """Yield rows for every encoding with its variants, in one, two and three dimensions."""
    for coord_dim in (1, 2, 3):
        for name in ENCODINGS:
            for options in ({}, *VARIANTS.get(name, [])):
                grid = (6, 6, 6)[:coord_dim]
                sizes = {"head_dim": head_dim, "num_heads": 2, "coord_dim": coord_dim}
                try:
                    encoding = build_encoding(name, grid=grid, **sizes, **options).double()
                    encoding(grid_positions(grid, dtype=torch.float64))  # an encoding may reject a dimension only here
                except ValueError as error:
                    note(f"{label(name, options)} is left out in {coord_dim}-D: {error}")
                    continue
                title, expected = label(name, options), expected_of_encoding(name, encoding)
                with torch.no_grad():
                    for axis in range(coord_dim):
                        change = change_of_scores(encoding, axis)
                        yield make_row("scores", title, f"{coord_dim}-D, move along axis {axis}", change, expected)
                    if coord_dim > 1 and has_generators(encoding):
                        largest = commutator(encoding)
                        separable = isinstance(encoding, SeparableEncoding)
                        expected = "exact" if separable else expected_of_commutator(largest)
                        yield make_row("generators", title, f"{coord_dim}-D, commutator", largest, expected)


def measure_wide_basis(head_dim: int) -> Row:
    """Return the row of a Cayley matrix of the model's whole width, applied after the rotation of the heads."""
    encoding = build_encoding("rope", head_dim=head_dim, num_heads=2).double()
    skew = torch.randn(2 * head_dim, 2 * head_dim, dtype=torch.float64)
    basis = cayley(skew - skew.mT)
    q, k = torch.randn(2, 1, 2, 12, head_dim, dtype=torch.float64)
    positions = torch.rand(12, 2, dtype=torch.float64) * 5

    def mixed_scores(r: Tensor) -> Tensor:
        mixed = [encoding(r).rotate(x).transpose(1, 2).flatten(-2) @ basis.mT for x in (q, k)]
        q_, k_ = (x.unflatten(-1, (2, head_dim)).transpose(1, 2) for x in mixed)
        return q_ @ k_.mT

    change = relative_change(mixed_scores(positions), mixed_scores(positions + SHIFT))
    return make_row("scores", "rope, Cayley of the whole width", "2-D, move along both axes", change, "fails by design")


@torch.no_grad()
def measure_features(head_dim: int) -> Iterator[Row]:
    """Yield rows with the change of an estimated kernel under a translation, averaged over draws.

    A bias would remain; the spread falls as 1/sqrt(draws).
    """
    encoding = build_encoding("rope-mixed", head_dim=head_dim, num_heads=1).double()
    positions = torch.tensor([[0.3, 1.2], [2.1, 0.4]], dtype=torch.float64)
    q, k = torch.randn(2, 1, 1, 1, head_dim, dtype=torch.float64) * 0.7
    own = [name for name, kind in FEATURE_MAPS.items() if not kind.__module__.startswith("performer_string.")]
    rotated = [(encoding(r[:1]).rotate(q), encoding(r[1:]).rotate(k)) for r in (positions, positions + SHIFT)]
    for title, (name, options) in progress({**MAPS, **{name: (name, {}) for name in own}}.items(), desc="feature maps"):
        random = issubclass(FEATURE_MAPS[name], RandomFeatures)
        sizes = {"num_heads": 16 * max(DRAWS), "num_features": 32} if random else {"num_heads": 1}  # heads: draws
        phi = build_feature_map(name, head_dim=head_dim, seed=1, **sizes, **options).double()
        before, after = ((phi.queries(a) * phi.keys(b)).sum(-1).flatten() for a, b in rotated)  # [heads]
        relative = (after - before) / before.mean()
        if not random:
            expected = "exact" if phi.isotropic else "fails by design"
            yield make_row("features", title, "without a draw", float(relative.abs()), expected)
            continue
        for draws in DRAWS:
            spread = relative.unflatten(0, (-1, draws)).mean(-1).square().mean().sqrt()
            yield make_row("features", title, f"{draws} draws", float(spread), "1/sqrt(draws)")
        error = float(relative.mean().abs() / (relative.std() / len(relative) ** 0.5))
        yield make_row("features", title, "bias in standard errors", error, "")


def expected_of_model(vit: ViT) -> str:
    """Return the expected change of a model's logits under a translation."""
    if vit.absolute is not None:
        return "fails by design"
    if vit.config.centred and vit.encoding.extrapolates:
        return "exact"
    bag = vit.config.encoding == "none"
    encodings = [(vit.config.encoding, vit.encoding)]
    encodings += [("", module.encoding) for module in vit.modules() if isinstance(module, TransportedValues)]
    expected = {expected_of_encoding(name, encoding) for name, encoding in encodings}
    after_the_map = any(backend.rotates_features for backend in vit.backends())  # exact for any map and any draw
    skewed = any(isinstance(module, FeatureMap) and not module.isotropic for module in vit.modules())
    skewed = skewed and not after_the_map
    if "fails by design" in expected or vit.config.values == "group-action" or ((vit.num_prefix or skewed) and not bag):
        return "fails by design"
    if "not known" in expected:
        return "not known"
    random = "performer-pytorch" in vit.config.kinds_of_attention()
    random |= any(isinstance(module, RandomFeatures) for module in vit.modules())
    return "one draw" if random and not bag and not after_the_map else "exact"


def untrained_models() -> Iterator[tuple[str, ViT]]:
    """Yield small models with titles: softmax and linear attention with several encodings."""
    for title, attention, phi in (
        ("softmax", "softmax", "favor+"),
        ("linear", "linear", "favor+"),
        ("linear, polynomial", "linear", "polynomial"),
    ):
        for name in ("none", "absolute", "rope-mixed", "circulant-string", "cayley-string", "liere"):
            config = ViTConfig(
                16, 4, num_classes=10, variant="micro", attention=attention, feature_map=phi, encoding=name
            )
            yield f"{title}, {name}", ViT(config)


def moved_logits(vit: ViT, images: Tensor, shift: float) -> Tensor:
    """Return the logits with all positions translated, including those of a learned table."""
    positions = grid_positions(vit.train_grid, dtype=torch.float64) + shift
    places = vit.table_positions(vit.train_grid)
    if places is None or vit.table_shares_positions():
        return vit(images, positions)
    with ModelChanges() as changes:
        changes.replace(vit, "table_positions", lambda *_: places + shift)  # these are no argument of the model
        return vit(images, positions)


@torch.no_grad()
def measure_models(models: Iterable[tuple[str, ViT]]) -> Iterator[Row]:
    """Yield the change of each model's logits under a translation of all positions.

    It is zero with softmax, and not with one draw of random features.
    """
    for title, vit in models:
        vit = vit.double().eval()
        size = (n * p for n, p in zip(vit.train_grid, vit.patch, strict=True))  # of images, videos or sequences
        images = torch.randn(2, vit.config.in_channels, *size).double()
        change = relative_change(moved_logits(vit, images, 0.0), moved_logits(vit, images, SHIFT))
        yield make_row("models", title, "logits, all positions moved", change, expected_of_model(vit))
