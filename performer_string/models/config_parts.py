"""The parts of a model's configuration, each with its checks: attention, position, bias, values, regularisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from performer_string.bias import LOCALITIES
from performer_string.feature_maps import FEATURE_MAPS
from performer_string.layers.backends import ATTENTIONS
from performer_string.layers.values import VALUE_MAPS
from performer_string.position import ENCODINGS, check_effects
from performer_string.position.grid import PositionMode, check_position_mode
from performer_string.utils.registry import RESERVED_OPTIONS, check_named, check_options, check_reserved, choose, lookup
from performer_string.utils.renames import current_name
from performer_string.utils.validation import check_positive

MAX_TEMPERATURE = 16.0
PositionUnit = Literal["patch", "image", "half-image", "raster"]


def check_part(kind: str, option: str, name: str, table: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check a name in a registry and its options.

    Args:
        kind: of the part, for messages.
        option: the field that holds the options.
        name, table: the name and the registry.
        options: of the part.
    """
    build = lookup(kind, name, table)
    check_reserved(option, options)
    check_options(kind, name, build, options, RESERVED_OPTIONS)


def check_attention_name(name: str) -> None:
    """Raise a ValueError for a name that is not in `ATTENTIONS`; where it is a feature map, the message says how."""
    if name in FEATURE_MAPS:
        raise ValueError(
            f"unknown attention {name!r}. It is a feature map: did you mean attention='linear', feature_map={name!r}?"
        )
    lookup("attention", name, ATTENTIONS)


@dataclass(kw_only=True)
class AttentionConfig:
    """How tokens attend.

    Attributes:
        attention: `linear`, `softmax` or `performer-pytorch`, or a list with one of them for each layer. Published
            linear ViTs have exact attention in their last layers (FLatten, arXiv:2308.00442; MambaVision,
            arXiv:2407.08083). `linear-rotated-features` rotates after the feature map, in all layers or none; the
            encoding then has the width of the features.
        feature_map: `favor+`, `favor+hyperbolic`, `arc-cosine`, `polynomial` or `elu`. Softmax has none, and leaves
            this and the next field unused.
        feature_options: of the feature map: `num_features`, `learned`, `order`, `scale`, `lower`.
        qk_norm: unit queries and keys, with a learned temperature unless the feature map is homogeneous.
        max_temperature: bound of the temperature. Another one than the default is an error where there is none.
        key_gate: a learned weight of each key, by its token. See docs/concepts/attention.md.
        log_n_scaling: logits times log N / log N_train for N tokens. Not for homogeneous feature maps (`arc-cosine`,
            and `polynomial` without `lower`), which see no factor of the logits. Beside softmax layers, layers with
            such a map go without.
        mimetic_init: the projection of the keys starts as a copy of that of the queries (arXiv:2305.09828). A token
            then first attends to similar ones and, by the rotation, near it.
        qkv_bias: whether the projections of queries, keys and values have a bias.
        qk_dim: width of a head's queries and keys, which rotations and feature maps then have; None for that of its
            values, D / H. Narrow ones make `polynomial` cheap (16 in Based, arXiv:2402.18668).
    """

    attention: list[str] | str = "linear"
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
        self.feature_map = current_name("feature map", self.feature_map)
        check_part("feature map", "feature_options", self.feature_map, FEATURE_MAPS, self.feature_options)
        check_positive("max_temperature", self.max_temperature)
        if self.qk_dim is not None:
            check_positive("qk_dim", self.qk_dim)

    def kinds_of_attention(self) -> list[str]:
        """Return the names of attention that occur, each once, in the order of the layers."""
        return list(dict.fromkeys([self.attention] if isinstance(self.attention, str) else self.attention))

    def attention_of(self, layer: int) -> str:
        """Return the name of the attention of a layer, counted from 0."""
        return self.attention if isinstance(self.attention, str) else self.attention[layer]


@dataclass(kw_only=True)
class PositionConfig:
    """How positions enter.

    Attributes:
        encoding: a name in `ENCODINGS`.
        encoding_options: of the encoding.
        absolute_table: `linear` or `bicubic`, for a learned table that is added to the tokens beside an encoding that
            rotates, as in pretrained models that get rotations. The name is how it is interpolated at other sizes. It
            is that of the encoding `absolute`, whose weights it takes.
        share_layers: one set of generators for all layers instead of one for each.
        positions: `extrapolate` (spacing preserved) or `interpolate` (squeezed into the training grid).
        position_unit: `patch`, or `image`, in which a training image reaches from 0 to 1 and a larger one beyond, as in
            the code of LieRE. Frequencies are then in radians per image. Distance decays stay in patches. With
            `half-image` it reaches from 0 to 2, or from -1 to 1 if positions are `centred`. With `raster` the encoding
            has one coordinate, the index of a patch in the raster of the training grid: from 0 on, or from 1 behind a
            class token or registers, which are at 0. On a wider image the end of a row has the index of the beginning
            of the next.
        position_grid: the training grid, in patches along each axis: that of `image_size` unless given. A model that
            is trained on at another size with the positions and log N of its weights needs it.
        centred: positions relative to their mean. `absolute` has a vector for each patch of the training grid; it is
            interpolated in any case and never centred.
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
            axes: of the images.
        """
        check_part("encoding", "encoding_options", self.encoding, ENCODINGS, self.encoding_options)
        raster = choose("unit of positions", self.position_unit, PositionUnit) == "raster"
        check_effects(self.encoding, self.encoding_options, 1 if raster else axes)
        if self.absolute_table is not None:
            check_part("encoding", "absolute_table", "absolute", ENCODINGS, {"interpolation": self.absolute_table})
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
        check_named("a locality", self.locality, self.locality_options, LOCALITIES)
        if self.locality is not None:
            check_part("locality", "locality_options", self.locality, LOCALITIES, self.locality_options)


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
        check_named("a value map", self.values, self.value_options, VALUE_MAPS)
        if self.values is not None:
            check_part("value map", "value_options", self.values, VALUE_MAPS, self.value_options)


@dataclass(kw_only=True)
class RegularisationConfig:
    """Regularisation, the epsilon of norms, and the seed.

    Attributes:
        drop_path: stochastic depth (arXiv:1603.09382), growing linearly to this rate at the last block.
        dropout: rate (arXiv:1207.0580) at the embedding, within and after the MLP, and after attention's projection;
            0.1 in LieRE (arXiv:2406.10322, appendix B.1).
        norm_eps: of the layer norms; many pretrained models have 1e-6.
        seed: of the random features.
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
                raise ValueError(f"{name} has to lie in [0, 1), not {getattr(self, name)}.")
