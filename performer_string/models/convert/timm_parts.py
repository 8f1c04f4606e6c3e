"""The parts that an attention of timm gets from this library: backend, encoding, relative bias and value map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from performer_string.layers.backends import ROTATED_FEATURES, check_capable
from performer_string.models.config.parts import AttentionConfig, BiasConfig, ValuesConfig, check_named_part
from performer_string.models.convert.timm_attention import PatchGrid, TimmAttention
from performer_string.models.convert.timm_checks import check_width
from performer_string.models.vit.build import build_backend, build_layer_bias, build_layer_values
from performer_string.position import ENCODINGS, Encoding, Sizes, build_encoding
from performer_string.utils.seeds import seeded


@dataclass(kw_only=True)
class TimmParts(ValuesConfig, BiasConfig, AttentionConfig):
    """Builder of the attention of each block. Attributes are the arguments of `performerize`.

    Other fields of `AttentionConfig` are what timm's model has.
    """

    encoding: str | None
    encoding_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def check(self) -> None:
        """Raise a ValueError for unknown names, reserved options, and parts that the attention does not support."""
        self.check_attention()
        self.check_bias()
        self.check_values()
        check_named_part("encoding", "encoding_options", self.encoding, ENCODINGS, self.encoding_options)
        if self.attention == ROTATED_FEATURES:
            raise ValueError(
                f"{self.attention} rotates features, which timm has no rotation for; use 'linear' or 'softmax'."
            )
        check_capable(self.attention_of(0), {"locality": self.locality is not None, "key_gate": self.key_gate})

    def need_positions(self) -> bool:
        """Return whether a part needs the positions of the patches."""
        return self.locality is not None or self.values is not None or self.encoding not in (None, "none")

    def build(
        self, source: Any, layer: int, grid: PatchGrid | None, apply_rope: Callable[..., Tensor] | None
    ) -> TimmAttention:
        """Return the attention of a block.

        Args:
            source: attention of timm that is replaced.
            layer: index of the block.
            grid: grid of the patches; None where no part needs it.
            apply_rope: function that rotates by the angles of timm's model, or None.

        Raises:
            ValueError: an encoding that adds to the tokens, or a value map of heads that are together not as wide as
                the tokens.
        """
        if self.values is not None:
            check_width(source, layer)
        width = source.head_dim if self.qk_dim is None else self.qk_dim
        sizes = Sizes(source.head_dim, source.num_heads, grid=None if grid is None else grid.train_grid, qk_dim=width)
        backend = build_backend(self, sizes, layer, self.seed, self.seed)
        encoding = self.build_encoding(sizes, layer)
        locality = build_layer_bias(self, sizes, layer, self.seed)
        values = build_layer_values(self, sizes, layer, self.seed)
        for part in (backend, encoding, locality, values):
            if part is not None:
                part.to(source.proj.weight)
        return TimmAttention(source, backend, apply_rope, encoding, locality, grid, values, self.key_gate)

    def build_encoding(self, sizes: Sizes, layer: int) -> Encoding | None:
        """Return the encoding of a block, with initial weights of its own, or None."""
        if self.encoding is None:
            return None
        heads = {"head_dim": sizes.qk_dim or sizes.head_dim, "num_heads": sizes.num_heads}
        with seeded(self.seed, "encoding", layer):
            encoding = build_encoding(self.encoding, **heads, grid=sizes.grid, **self.encoding_options)
        if encoding.additive and self.encoding != "none":
            raise ValueError(
                f"encoding {self.encoding!r} adds to the tokens and is no part of attention: take one that rotates, "
                f"such as 'rope-mixed', 'none', or None for that of timm's model."
            )
        return encoding
