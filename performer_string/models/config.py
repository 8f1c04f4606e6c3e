"""Everything that can be chosen about a ViT, in parts, each with its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from performer_string.bias import LOCALITIES
from performer_string.feature_maps import FEATURE_MAPS
from performer_string.layers.backends import ATTENTIONS
from performer_string.layers.values import VALUE_MAPS
from performer_string.position import ENCODINGS
from performer_string.position.grid import PositionMode, check_position_mode
from performer_string.utils.registry import check_options, lookup, nearest
from performer_string.utils.renames import current_fields, current_name
from performer_string.utils.validation import check_positive, check_types

VARIANTS: dict[str, dict[str, int]] = {
    "micro": {"width": 48, "depth": 4, "num_heads": 4},  # small enough for a CPU
    "tiny": {"width": 192, "depth": 12, "num_heads": 3},  # DeiT-Ti, arXiv:2012.12877 table 1
    "small": {"width": 384, "depth": 12, "num_heads": 6},  # DeiT-S, the same
    "base": {"width": 768, "depth": 12, "num_heads": 12},  # ViT-B, arXiv:2010.11929 table 1
}

Pool = Literal["mean", "cls", "attention"]

# What the model itself passes to the parts it builds.
RESERVED_OPTIONS = {"head_dim", "num_heads", "coord_dim", "grid", "layers", "seed", "sizes"}


def patch_and_image(patch: int | Sequence[int], image: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return both sizes along each axis; a single number stands for as many as the other has, or for two."""
    axes = {len(size) for size in (patch, image) if isinstance(size, Sequence)} or {2}
    if len(axes) > 1:
        raise ValueError(f"patch_size {patch} and image_size {image} differ in the number of axes.")
    sizes = [tuple(size) if isinstance(size, Sequence) else (size,) * max(axes) for size in (patch, image)]
    if not max(axes) or min(map(min, sizes)) < 1:
        raise ValueError(f"patch_size and image_size have to be positive, not {patch} and {image}.")
    return sizes[0], sizes[1]


def check_part(kind: str, option: str, name: str, table: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check a name in a registry and its options.

    Args:
        kind: of the part, for messages.
        option: the field that holds the options.
        name, table: the name and the registry.
        options: of the part.
    """
    build = lookup(kind, name, table)
    for reserved in sorted(RESERVED_OPTIONS & set(options)):
        raise ValueError(f"{option} cannot have {reserved!r}, which the model itself gives.")
    check_options(kind, name, build, options, RESERVED_OPTIONS)


@dataclass(kw_only=True)
class AttentionConfig:
    """How tokens attend.

    Attributes:
        attention: `linear`, `softmax` or `performer-pytorch`.
        feature_map: `favor+`, `favor+hyperbolic`, `arc-cosine` or `polynomial`. Softmax has none, and leaves this and
            the next field unused.
        feature_options: of the feature map: `num_features`, `learned`, `order`, `scale`, `lower`.
        qk_norm: unit queries and keys, with a learned temperature unless the feature map is homogeneous.
        max_temperature: bound of the temperature.
        key_gate: a learned weight of each key, by its token. See docs/concepts/attention.md.
        log_n_scaling: logits times log N / log N_train for N tokens. Not for homogeneous feature maps (`arc-cosine`,
            and `polynomial` without `lower`), which see no factor of the logits.
        mimetic_init: the projection of the keys starts as a copy of that of the queries, so that a token first attends
            to similar ones and, by the rotation, near it (arXiv:2305.09828).
    """

    attention: str = "linear"
    feature_map: str = "favor+"
    feature_options: dict[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    max_temperature: float = 16.0
    key_gate: bool = False
    log_n_scaling: bool = False
    mimetic_init: bool = False

    def check_attention(self) -> None:
        """Raise a ValueError for names, options and values out of range."""
        lookup("attention", self.attention, ATTENTIONS)
        self.feature_map = current_name("feature map", self.feature_map)
        check_part("feature map", "feature_options", self.feature_map, FEATURE_MAPS, self.feature_options)
        check_positive("max_temperature", self.max_temperature)


@dataclass(kw_only=True)
class PositionConfig:
    """How positions enter.

    Attributes:
        encoding: a name in `ENCODINGS`.
        encoding_options: of the encoding.
        share_layers: one set of generators for all layers instead of one for each.
        positions: `extrapolate` (spacing preserved) or `interpolate` (squeezed into the training grid).
        position_grid: the training grid, in patches along each axis: that of `image_size` unless given. A model that
            is trained on at another size with the positions and log N of its weights needs it.
        centred: positions relative to their mean. `absolute` has a vector for each patch of the training grid; it is
            interpolated in any case and never centred.
    """

    encoding: str = "circulant-string"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    share_layers: bool = False
    positions: PositionMode = "extrapolate"
    position_grid: list[int] | None = None
    centred: bool = False

    def check_position(self, axes: int) -> None:
        """Raise a ValueError for names, options and values out of range.

        Args:
            axes: of the images.
        """
        check_part("encoding", "encoding_options", self.encoding, ENCODINGS, self.encoding_options)
        check_position_mode(self.positions)
        grid = self.position_grid
        if grid is not None and (len(grid) != axes or min(grid) < 1):
            raise ValueError(f"position_grid has to hold {axes} positive numbers of patches, not {grid}.")


@dataclass(kw_only=True)
class BiasConfig:
    """How attention depends on the distance.

    Attributes:
        locality: a name in `LOCALITIES`: values are attenuated by distance, with a sigma for each layer and head, or
            each offset has a bias. Prefix tokens have no position, so that with pool `cls` the last layer's has no
            effect.
        locality_options: of the locality; with `normalised` the attention's denominator sees it too.
    """

    locality: str | None = None
    locality_options: dict[str, Any] = field(default_factory=dict)

    def check_bias(self) -> None:
        """Raise a ValueError for unknown names and options."""
        if self.locality is not None:
            check_part("locality", "locality_options", self.locality, LOCALITIES, self.locality_options)
        elif self.locality_options:
            raise ValueError(
                f"options of a locality, {self.locality_options}, but none is named. Known: {', '.join(LOCALITIES)}."
            )


@dataclass(kw_only=True)
class ValuesConfig:
    """What is done to the values of attention.

    Attributes:
        values: a name in `VALUE_MAPS`, one for each layer.
        value_options: of the value map.
    """

    values: str | None = None
    value_options: dict[str, Any] = field(default_factory=dict)

    def check_values(self) -> None:
        """Raise a ValueError for unknown names and options."""
        if self.values is not None:
            check_part("value map", "value_options", self.values, VALUE_MAPS, self.value_options)
        elif self.value_options:
            raise ValueError(
                f"options of a value map, {self.value_options}, but none is named. Known: {', '.join(VALUE_MAPS)}."
            )


@dataclass(kw_only=True)
class RegularisationConfig:
    """What keeps training in bounds.

    Attributes:
        drop_path: stochastic depth (arXiv:1603.09382), growing linearly to this rate at the last block.
        norm_eps: of the layer norms; many pretrained models have 1e-6.
        seed: of the random features.
    """

    drop_path: float = 0.0
    norm_eps: float = 1e-5
    seed: int = 0

    def check_regularisation(self) -> None:
        """Raise a ValueError for values out of range."""
        check_positive("norm_eps", self.norm_eps)
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path has to lie in [0, 1), not {self.drop_path}.")


@dataclass
class ViTConfig(RegularisationConfig, ValuesConfig, BiasConfig, PositionConfig, AttentionConfig):
    """Everything that defines a ViT: its sizes, and the fields of the parts above, all in one flat namespace.

    Attributes:
        image_size: training size in pixels, a number or [height, width], or one for each axis of sequences, volumes or
            videos; other sizes work later.
        patch_size: a number or one for each axis.
        in_channels: of the images.
        num_classes: of the head; 0 for none, which leaves the pooled features.
        variant: micro, tiny, small or base, for those of width, depth and num_heads that are not given; tiny unless
            given. It is None once it has filled them in. Sizes that are all those of another variant count as not
            given, so that `dataclasses.replace(config, variant=...)` works.
        width: D.
        depth: number of blocks.
        num_heads: H.
        mlp_ratio: hidden width of the MLP over D.
        pool: `mean` over the patches, a `cls` token, or `attention` over the patches with learned queries.
        registers: number of register tokens (arXiv:2309.16588).
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
    pool: Pool = "mean"
    registers: int = 0

    @classmethod
    def of_checkpoint(cls, saved: Mapping[str, Any], **overrides: Any) -> ViTConfig:
        """Return the configuration that a checkpoint holds, under today's names.

        Args:
            saved: fields of the checkpoint, which hold the sizes whatever variant they come from.
            overrides: fields in place of those.

        Raises:
            ValueError: a field that this version does not have.
        """
        known = {each.name for each in fields(cls)}
        content = {**current_fields(saved), "variant": None, **overrides}
        for name in content:
            if name not in known:
                raise ValueError(
                    f"the checkpoint has a field {name!r} of ViTConfig, which this version does not have."
                    f"{nearest(name, known)} Load it with the version that wrote it."
                )
        return cls(**content)

    def __post_init__(self) -> None:
        check_types(self)
        self.fill_in_sizes()
        for name in ("width", "depth", "num_heads", "in_channels", "mlp_ratio"):
            check_positive(name, getattr(self, name))
        for name in ("registers", "num_classes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} has to be 0 or more, not {getattr(self, name)}.")
        lookup("pooling", self.pool, dict.fromkeys(get_args(Pool)))
        self.check_attention()
        self.check_position(len(patch_and_image(self.patch_size, self.image_size)[0]))
        self.check_bias()
        self.check_values()
        self.check_regularisation()
        if self.attention == "performer-pytorch" and (self.locality is not None or self.key_gate):
            missing = "locality" if self.locality is not None else "key_gate"
            raise ValueError(f'attention "performer-pytorch" has no {missing}; use "linear" or "softmax".')

    def fill_in_sizes(self) -> None:
        """Take width, depth and num_heads from the variant where they are not given."""
        variant_sizes = lookup("ViT variant", self.variant or "tiny", VARIANTS)
        sizes = {name: getattr(self, name) for name in variant_sizes}
        if self.variant is not None and None not in sizes.values():
            if sizes not in VARIANTS.values():
                raise ValueError(
                    f"the variant {self.variant!r} has no effect, since width, depth and num_heads are all given ("
                    f"{', '.join(map(str, sizes.values()))}): leave it out, or make one of them null."
                )
            sizes = dict.fromkeys(sizes)
        for name, size in variant_sizes.items():
            setattr(self, name, size if sizes[name] is None else sizes[name])
        self.variant = None
