"""The parts of a model's configuration, each with its checks: attention, position, bias, values, regularisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from performer_string.bias import LOCALITIES
from performer_string.feature_maps import FEATURE_MAPS
from performer_string.layers.backends import ATTENTIONS, check_attention_options, takes
from performer_string.layers.values import VALUE_MAPS
from performer_string.position import ENCODINGS, check_effects
from performer_string.position.grid import PositionMode, check_position_mode
from performer_string.utils.registry import RESERVED_OPTIONS, check_options, check_reserved, choose, lookup
from performer_string.utils.renames import current_name
from performer_string.utils.validation import check_positive

MAX_TEMPERATURE = 16.0
PositionUnit = Literal["patch", "image", "half-image", "raster"]


def check_named_part(
    kind: str, option: str, name: str | None, table: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Check a name in a registry and its options.

    Args:
        kind: kind of the part, for messages.
        option: name of the field that holds the options.
        name, table: name of the part, or None for no part, and the registry.
        options: options of the part.

    Raises:
        ValueError: an unknown name or option, a value of another type, or options of no part.
    """
    if name is None:
        if options:
            raise ValueError(f"{option} has {dict(options)}, but no {kind} is named. Known: {', '.join(table)}.")
        return
    build = lookup(kind, name, table)
    check_reserved(option, options)
    check_options(kind, name, build, options, RESERVED_OPTIONS)


def check_attention_name(name: str) -> None:
    """Raise a ValueError for an unknown name. Where it is a feature map, the message says how to give it."""
    if name in FEATURE_MAPS:
        raise ValueError(
            f"unknown attention {name!r}. It is a feature map: did you mean attention='linear', feature_map={name!r}?"
        )
    lookup("attention", name, ATTENTIONS)


@dataclass(kw_only=True)
class AttentionConfig:
    """Configuration of attention.

    Attributes:
        attention: name of the attention, `linear`, `softmax` or `performer-pytorch`, or a list with one of them for
            each layer. Published linear ViTs have exact attention in their last layers (FLatten, arXiv:2308.00442;
            MambaVision, arXiv:2407.08083). `linear-rotated-features` rotates after the feature map, in all layers or
            none; the encoding then has the width of the features.
        attention_options: options of an attention of your own. In a list of several, each gets those that it takes.
        feature_map: name of the feature map: `favor+`, `favor+hyperbolic`, `arc-cosine`, `polynomial` or `elu`. Softmax
            has none, and leaves this and the next field unused.
        feature_options: options of the feature map: `num_features`, `learned`, `order`, `scale`, `lower`.
        qk_norm: whether queries and keys have unit length, with a learned temperature unless the feature map is
            homogeneous.
        max_temperature: upper bound of the temperature. Another value than the default is an error without a
            temperature.
        key_gate: whether each key has a learned weight, by its token. See docs/concepts/attention.md.
        log_n_scaling: whether logits are multiplied by log N / log N_train for N tokens. It is not for homogeneous
            feature maps (`arc-cosine`, and `polynomial` without `lower`), on which it has no effect. Next to softmax
            layers, layers with such a map do without it.
        mimetic_init: whether the projection of the keys starts as a copy of that of the queries (arXiv:2305.09828). A
            token then first attends to similar ones and, by the rotation, near it.
        qkv_bias: whether the projections of queries, keys and values have a bias.
        qk_dim: width of a head's queries and keys, which rotations and feature maps then have; None for that of its
            values, D / H. Narrow ones make `polynomial` cheap (16 in Based, arXiv:2402.18668).
    """

    attention: list[str] | str = "linear"
    attention_options: dict[str, Any] = field(default_factory=dict)
    feature_map: str = "favor+"
    feature_options: dict[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    max_temperature: float = MAX_TEMPERATURE
    key_gate: bool = False
    log_n_scaling: bool = False
    mimetic_init: bool = False
    qkv_bias: bool = True
    qk_dim: int | None = None

    def check_attention(self) -> None:
        """Raise a ValueError for names, options and values out of range."""
        for name in self.kinds_of_attention():
            check_attention_name(name)
            check_attention_options(name, self.options_of(name))
        unknown = set(self.attention_options).difference(*map(self.options_of, self.kinds_of_attention()))
        if unknown:
            raise ValueError(f"attention_options has {sorted(unknown)}, which none of {self.attention} takes.")
        self.feature_map = current_name("feature map", self.feature_map)
        check_named_part("feature map", "feature_options", self.feature_map, FEATURE_MAPS, self.feature_options)
        check_positive("max_temperature", self.max_temperature)
        if self.qk_dim is not None:
            check_positive("qk_dim", self.qk_dim)

    def kinds_of_attention(self) -> list[str]:
        """Return the names of attention that occur, each once, in the order of the layers."""
        return list(dict.fromkeys([self.attention] if isinstance(self.attention, str) else self.attention))

    def has_feature_map(self, name: str) -> bool:
        """Return whether an attention has the feature map of this configuration."""
        return takes(lookup("attention", name, ATTENTIONS), "phi", "feature_map")

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of an attention: all of them, or of several attentions those that it takes."""
        several = len(self.kinds_of_attention()) > 1
        return {
            option: value
            for option, value in self.attention_options.items()
            if not several or takes(lookup("attention", name, ATTENTIONS), option)
        }

    def attention_of(self, layer: int) -> str:
        """Return the name of the attention of a layer, counted from 0."""
        return self.attention if isinstance(self.attention, str) else self.attention[layer]


@dataclass(kw_only=True)
class PositionConfig:
    """Configuration of positions.

    Attributes:
        encoding: name of the encoding in `ENCODINGS`.
        encoding_options: options of the encoding.
        absolute_table: interpolation at other sizes, `linear` or `bicubic`, of a learned table that is added to the
            tokens in addition to an encoding that rotates, as in pretrained models that get rotations. The table is
            that of the encoding `absolute`, whose weights it takes. None for no table.
        share_layers: whether all layers share one set of generators.
        positions: position mode: `extrapolate` (spacing preserved) or `interpolate` (within the training grid).
        position_unit: unit of positions: `patch`, or `image`, in which a training image spans [0, 1] and a larger
            one more, as in the code of LieRE. Frequencies are then in radians per image. Distance decays stay
            in patches. With `half-image` coordinates span [0, 2], or [-1, 1] if positions are `centred`. With
            `raster` the encoding has one coordinate, the index of a patch in the raster of the training grid: from 0,
            or from 1 with a class token or registers, which are at 0. On a wider image the end of a row has the index
            of the beginning of the next.
        position_grid: training grid, in patches along each axis; that of `image_size` by default. Give it where a model
            is trained further at another size, with the positions and log N of its weights.
        centred: whether positions are relative to their mean. `absolute` has a vector for each patch of the training
            grid; it is interpolated in any case and never centred.
    """

    encoding: str = "circulant-string"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    absolute_table: str | None = None
    share_layers: bool = False
    positions: PositionMode = "extrapolate"
    position_unit: PositionUnit = "patch"
    position_grid: list[int] | None = None
    centred: bool = False

    def check_position(self, axes: int) -> None:
        """Raise a ValueError for names, options and values out of range.

        Args:
            axes: number of axes of the images.
        """
        check_named_part("encoding", "encoding_options", self.encoding, ENCODINGS, self.encoding_options)
        raster = choose("unit of positions", self.position_unit, PositionUnit) == "raster"
        check_effects(self.encoding, self.encoding_options, 1 if raster else axes)
        if self.absolute_table is not None:
            check_named_part(
                "encoding", "absolute_table", "absolute", ENCODINGS, {"interpolation": self.absolute_table}
            )
            if ENCODINGS[self.encoding].additive:
                raise ValueError(
                    f"absolute_table={self.absolute_table!r} is for a table beside an encoding that rotates, and "
                    f"{self.encoding!r} does not: leave it out, and take the encoding 'absolute' for a table alone."
                )
        check_position_mode(self.positions)
        if raster and (self.positions == "interpolate" or self.centred):
            raise ValueError("position_unit='raster' counts patches: leave out positions='interpolate' and centred.")
        grid = self.position_grid
        if grid is not None and (len(grid) != axes or min(grid) < 1):
            raise ValueError(f"position_grid must hold {axes} positive numbers of patches, not {grid}.")


@dataclass(kw_only=True)
class BiasConfig:
    """Configuration of the relative bias.

    Attributes:
        locality: name of a relative bias in `LOCALITIES`: values are attenuated by distance, with a sigma for each
            layer and head, or each offset has a bias. Prefix tokens have no position, so that with pool `cls` that of
            the last layer has no effect.
        locality_options: options of the relative bias; with `normalised` it is in the attention's denominator too.
    """

    locality: str | None = None
    locality_options: dict[str, Any] = field(default_factory=dict)

    def check_bias(self) -> None:
        """Raise a ValueError for unknown names and options."""
        check_named_part("locality", "locality_options", self.locality, LOCALITIES, self.locality_options)


@dataclass(kw_only=True)
class ValuesConfig:
    """Configuration of the value maps.

    Attributes:
        values: name of the value map in `VALUE_MAPS`, of which each layer has one.
        value_options: options of the value map.
    """

    values: str | None = None
    value_options: dict[str, Any] = field(default_factory=dict)

    def check_values(self) -> None:
        """Raise a ValueError for unknown names and options."""
        check_named_part("value map", "value_options", self.values, VALUE_MAPS, self.value_options)


@dataclass(kw_only=True)
class RegularisationConfig:
    """Regularisation, the epsilon of norms, and the seed.

    Attributes:
        drop_path: rate of stochastic depth (arXiv:1603.09382) at the last block, to which it grows linearly from 0.
        dropout: dropout rate (arXiv:1207.0580) at the embedding, within and after the MLP, and after attention's
            projection; 0.1 in LieRE (arXiv:2406.10322, appendix B.1).
        norm_eps: epsilon of the layer norms; many pretrained models have 1e-6.
        seed: seed of the random features.
    """

    drop_path: float = 0.0
    dropout: float = 0.0
    norm_eps: float = 1e-5
    seed: int = 0

    def check_regularisation(self) -> None:
        """Raise a ValueError for values out of range."""
        check_positive("norm_eps", self.norm_eps)
        for name in ("drop_path", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), not {getattr(self, name)}.")
