"""Everything that can be chosen about a ViT, with its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from performer_string.attend import ATTENTIONS
from performer_string.choices import check_positive, check_types, lookup
from performer_string.encodings import ENCODINGS
from performer_string.features import FEATURE_MAPS
from performer_string.locality import LOCALITIES
from performer_string.positions import PositionMode
from performer_string.values import VALUE_MAPS

VARIANTS: dict[str, dict[str, int]] = {
    "micro": {"width": 48, "depth": 4, "num_heads": 4},  # small enough for a CPU
    "tiny": {"width": 192, "depth": 12, "num_heads": 3},  # DeiT-Ti, arXiv:2012.12877 table 1
    "small": {"width": 384, "depth": 12, "num_heads": 6},  # DeiT-S, the same
    "base": {"width": 768, "depth": 12, "num_heads": 12},  # ViT-B, arXiv:2010.11929 table 1
}

Pool = Literal["mean", "cls", "attention"]


def patch_and_image(patch: int | Sequence[int], image: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both along each axis: a single number stands for as many as the other has, or for two."""
    axes = {len(size) for size in (patch, image) if isinstance(size, Sequence)} or {2}
    if len(axes) > 1:
        raise ValueError(f"patch_size {patch} and image_size {image} differ in the number of axes.")
    sizes = [tuple(size) if isinstance(size, Sequence) else (size,) * max(axes) for size in (patch, image)]
    if not max(axes) or min(map(min, sizes)) < 1:
        raise ValueError(f"patch_size and image_size have to be positive, not {patch} and {image}.")
    return sizes[0], sizes[1]


@dataclass
class ViTConfig:
    """Everything that defines a ViT.

    Attributes:
        image_size: training size in pixels, a number or [height, width], or one for each axis of sequences, volumes or
            videos; other sizes work later.
        patch_size: a number or one for each axis.
        in_channels: of the images.
        num_classes: of the head; 0 for none, which leaves the pooled features.
        variant: micro, tiny, small or base, for those of width, depth and num_heads that are not given; tiny unless
            given. Once it has filled them in it is None.
        width: D.
        depth: number of blocks.
        num_heads: H.
        mlp_ratio: hidden width of the MLP over D.
        attention: `linear`, `softmax` or `performer-pytorch`.
        feature_map: `favor+`, `favor+hyperbolic`, `relu` or `polynomial`; softmax has none, and leaves this and
            the next unused.
        feature_options: of the feature map: `num_features`, `learned`, `order`, `scale`, `lower`.
        encoding: a name in `ENCODINGS`.
        encoding_options: of the encoding.
        locality: a name in `LOCALITIES`: values are attenuated by distance, with a sigma for each layer and head, or
            each offset has a bias. Prefix tokens have no place, so that with pool `cls` the last layer's has no effect.
        locality_options: of the locality; with `normalised` the attention's denominator sees it too.
        values: a name in `VALUE_MAPS`: a structure on the values, one for each layer.
        value_options: of that structure.
        share_layers: one set of generators for all layers instead of one for each.
        positions: `extrapolate` (spacing preserved), `interpolate` (squeezed into the training grid) or `unit`.
        position_grid: the training grid, in patches along each axis: that of `image_size` unless given, as it has to be
            for a model that is trained on at another size with the positions and log N of its weights.
        centred: positions relative to their mean. (`absolute` has a place for each patch of the training grid, and is
            interpolated in any case and never centred.)
        pool: `mean` over the patches, a `cls` token, or `attention` over the patches with learned queries.
        registers: number of register tokens (arXiv:2309.16588).
        qk_norm: unit queries and keys, with a learned temperature unless the feature map is homogeneous.
        max_temperature: its bound.
        key_gate: a learned weight of each key, by its token. See docs/findings.md.
        log_scale: logits times log N / log N_train for N tokens; not for homogeneous feature maps (`relu`, and
            `polynomial` without `lower`), which see no factor of the logits.
        tied_start: the projection of the keys starts as a copy of that of the queries, so that a token first attends
            to those like itself and, by the rotation, near it (arXiv:2305.09828). See docs/findings.md.
        drop_path: stochastic depth (arXiv:1603.09382), growing linearly to this rate at the last block.
        norm_eps: of the layer norms; many pretrained models have 1e-6.
        seed: of the random features.
    """

    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    in_channels: int = 3
    num_classes: int = 1000
    variant: str | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float = 4.0
    attention: str = "linear"
    feature_map: str = "favor+"
    feature_options: dict[str, Any] = field(default_factory=dict)
    encoding: str = "circulant-string"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    locality: str | None = None
    locality_options: dict[str, Any] = field(default_factory=dict)
    values: str | None = None
    value_options: dict[str, Any] = field(default_factory=dict)
    share_layers: bool = False
    positions: PositionMode = "extrapolate"
    position_grid: list[int] | None = None
    centred: bool = False
    pool: Pool = "mean"
    registers: int = 0
    qk_norm: bool = False
    max_temperature: float = 16.0
    key_gate: bool = False
    log_scale: bool = False
    tied_start: bool = False
    drop_path: float = 0.0
    norm_eps: float = 1e-5
    seed: int = 0

    @classmethod
    def of_checkpoint(cls, saved: Mapping[str, Any], **overrides: Any) -> ViTConfig:
        """From the fields in a checkpoint, whose sizes stand in it whatever variant they come from."""
        return cls(**{**saved, "variant": None, **overrides})

    def __post_init__(self) -> None:
        check_types(self)
        sizes = lookup("ViT variant", self.variant or "tiny", VARIANTS)
        given = {name: getattr(self, name) for name in sizes}
        if self.variant is not None and None not in given.values():
            raise ValueError(
                f"the variant {self.variant!r} has no effect, since width, depth and num_heads are all given ("
                f"{', '.join(map(str, given.values()))}): leave it out, or make one of them null."
            )
        for attribute, size in sizes.items():
            setattr(self, attribute, size if given[attribute] is None else given[attribute])
        self.variant = None
        lookup("attention", self.attention, ATTENTIONS)
        lookup("feature map", self.feature_map, FEATURE_MAPS)
        lookup("encoding", self.encoding, ENCODINGS)
        lookup("pooling", self.pool, dict.fromkeys(get_args(Pool)))
        for kind, name, options, table in (
            ("locality", self.locality, self.locality_options, LOCALITIES),
            ("value map", self.values, self.value_options, VALUE_MAPS),
        ):
            if name is not None:
                lookup(kind, name, table)
            elif options:
                raise ValueError(f"options of a {kind}, {options}, but none is named. Known: {', '.join(table)}.")
        for name in ("feature_options", "encoding_options", "locality_options", "value_options"):
            own = sorted({"head_dim", "num_heads", "coord_dim", "grid", "layers", "seed"} & set(getattr(self, name)))
            if own:
                raise ValueError(f"{name} cannot have {own[0]!r}, which the model itself gives.")
        if self.attention == "performer-pytorch" and (self.locality is not None or self.key_gate):
            missing = "locality" if self.locality is not None else "key_gate"
            raise ValueError(f'attention "performer-pytorch" has no {missing}; use "linear" or "softmax".')
        lookup("position mode", self.positions, dict.fromkeys(get_args(PositionMode)))
        for name in ("width", "depth", "num_heads", "in_channels", "max_temperature", "mlp_ratio", "norm_eps"):
            check_positive(name, getattr(self, name))
        for name in ("registers", "num_classes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} has to be 0 or more, not {getattr(self, name)}.")
        axes, grid = len(patch_and_image(self.patch_size, self.image_size)[0]), self.position_grid
        if grid is not None and (len(grid) != axes or min(grid) < 1):
            raise ValueError(f"position_grid has to hold {axes} positive numbers of patches, not {grid}.")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path has to lie in [0, 1), not {self.drop_path}.")
