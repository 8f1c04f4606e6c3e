"""The parts that the attention of a host gets from this library: backend, encoding, locality and value map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from performer_string.bias import LOCALITIES, RelativeBias, build_locality
from performer_string.layers.backends import ROTATED_FEATURES, AttentionBackend, build_attention, check_capable
from performer_string.layers.values import VALUE_MAPS, ValueMap, build_value_map
from performer_string.models.convert.timm_attention import HostAttention, HostGrid
from performer_string.models.convert.timm_checks import check_width
from performer_string.position import ENCODINGS, Encoding, build_encoding
from performer_string.utils.registry import check_named, check_reserved
from performer_string.utils.seeds import derive_seed, seeded


@dataclass(frozen=True, kw_only=True)
class HostParts:
    """Builder of the attention of each block. Attributes are the arguments of `performerize`."""

    attention: str
    feature_map: str
    feature_options: Mapping[str, Any]
    encoding: str | None
    encoding_options: Mapping[str, Any] | None
    locality: str | None
    locality_options: Mapping[str, Any] | None
    values: str | None
    value_options: Mapping[str, Any] | None
    key_gate: bool
    qk_dim: int | None
    seed: int

    def check(self) -> None:
        """Raise a ValueError for unknown names, reserved options, and parts that the attention does not support."""
        check_named("an encoding", self.encoding, self.encoding_options, ENCODINGS)
        check_named("a locality", self.locality, self.locality_options, LOCALITIES)
        check_named("a value map", self.values, self.value_options, VALUE_MAPS)
        check_reserved("encoding_options", self.encoding_options)
        check_reserved("locality_options", self.locality_options)
        check_reserved("value_options", self.value_options)
        if self.attention == ROTATED_FEATURES:
            raise ValueError(
                f"{self.attention} rotates features, which a host has no rotation for; use 'linear' or 'softmax'."
            )
        check_capable(self.attention, {"locality": self.locality is not None, "key_gate": self.key_gate})

    def need_positions(self) -> bool:
        """Return whether a part needs the positions of the patches."""
        return self.locality is not None or self.values is not None or self.encoding not in (None, "none")

    def build(
        self, host: Any, place: int, grid: HostGrid | None, rotate_host: Callable[..., Tensor] | None
    ) -> HostAttention:
        """Return the attention of a block.

        Args:
            host: attention that is replaced.
            place: index of the block.
            grid: grid of the patches; None where no part needs it.
            rotate_host: function that rotates by the host's own angles, or None.
        """
        encoding: Encoding | None = None
        bias: RelativeBias | None = None
        values: ValueMap | None = None
        if self.encoding is not None:
            encoding = self.build_encoding(host, place, grid)
        if self.locality is not None:
            assert grid is not None
            options = dict(self.locality_options or {})
            with seeded(self.seed, "locality", place):
                bias = build_locality(self.locality, num_heads=host.num_heads, grid=grid.train_grid, **options)
        if self.values is not None:
            assert grid is not None
            values = self.build_values(host, place, grid)
        backend = self.build_backend(host, place)
        for part in (backend, encoding, bias, values):
            if part is not None:
                part.to(host.proj.weight)
        return HostAttention(host, backend, rotate_host, encoding, bias, grid, values, self.key_gate)

    def query_width(self, host: Any) -> int:
        """Return the width of a head's queries and keys."""
        return cast(int, host.head_dim) if self.qk_dim is None else self.qk_dim

    def build_backend(self, host: Any, place: int) -> AttentionBackend:
        """Return the attention backend of a block, with random features of its own."""
        return build_attention(
            self.attention,
            head_dim=self.query_width(host),
            num_heads=host.num_heads,
            feature_map=self.feature_map,
            seed=derive_seed(self.seed, "features", place),
            feature_options=self.feature_options,
        )

    def build_encoding(self, host: Any, place: int, grid: HostGrid | None) -> Encoding:
        """Return the encoding of a block, with initial weights of its own.

        Raises:
            ValueError: an encoding that adds to the tokens.
        """
        assert self.encoding is not None
        train_grid = None if grid is None else grid.train_grid
        sizes = {"head_dim": self.query_width(host), "num_heads": host.num_heads}
        with seeded(self.seed, "encoding", place):
            encoding = build_encoding(self.encoding, **sizes, grid=train_grid, **(self.encoding_options or {}))
        if encoding.additive and self.encoding != "none":
            raise ValueError(
                f"encoding {self.encoding!r} adds to the tokens and is no part of attention: take one that rotates, "
                f"such as 'rope-mixed', 'none', or None for the host's own."
            )
        return encoding

    def build_values(self, host: Any, place: int, grid: HostGrid) -> ValueMap:
        """Return the value map of a block, with initial weights of its own.

        Raises:
            ValueError: heads that are together not as wide as the tokens.
        """
        assert self.values is not None
        check_width(host, place)
        sizes = {"head_dim": host.head_dim, "qk_dim": self.query_width(host), "num_heads": host.num_heads}
        with seeded(self.seed, "values", place):
            return build_value_map(self.values, **sizes, grid=grid.train_grid, **(self.value_options or {}))
