"""The interface of an attention backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from performer_string.bias import RelativeBias
from performer_string.feature_maps import FeatureMap
from performer_string.ops.layout import EVERY_TOKEN, AttentionContext, TokenLayout
from performer_string.ops.packing import attend_packed
from performer_string.position.rotation import Rotation
from performer_string.utils.registry import lookup

# Parts of attention that a backend may lack, and the part that an option of a layer of another name needs.
PARTS = ("rotation", "locality", "key mask", "key bias")
NEEDS = {"key_gate": "key bias"}


def identity_values(k: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the identity matrix as the values of keys [B, H, N, d]: outputs are then the weights, [B, H, N, N]."""
    return torch.eye(k.shape[-2], device=k.device, dtype=dtype).expand(*k.shape[:2], -1, -1)


def check_has(attention: str, lacks: frozenset[str], wanted: Mapping[str, bool]) -> None:
    """Raise a ValueError for what an attention lacks.

    Args:
        attention: name of the attention, for the message.
        lacks: parts that it lacks, of `PARTS`.
        wanted: parts, or options of a layer, each with whether it is asked for.
    """
    for name, is_wanted in wanted.items():
        if is_wanted and NEEDS.get(name, name) in lacks:
            raise ValueError(f'attention "{attention}" has no {name}; use "linear" or "softmax".')


class AttentionBackend(nn.Module):
    """A way to compute attention, as the layer, the trainer's diagnostics and the evaluations call it.

    A subclass defines `attend`. Feature maps among its parts are redrawn with the model's.

    Attributes:
        homogeneous: whether a common factor of queries or keys changes no weight, so that a temperature has no effect.
        logit_scale: scale s of the logits s q.k; None for d^-1/2, or where there are no logits.
        rotates_features: whether the rotation is applied to the features, and not to queries and keys.
        lacks: what `attend` does not use, of `rotation`, `locality`, `key mask` and `key bias`. A call that gives one
            of these is then an error.
    """

    homogeneous: bool = False
    logit_scale: float | None = None
    rotates_features: bool = False
    lacks: frozenset[str] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for part in cls.lacks:
            lookup("part of attention, in `lacks`:", part, dict.fromkeys(PARTS))
        if "attend" in vars(cls) and "matrix" not in vars(cls):
            cls.matrix = AttentionBackend.matrix  # type: ignore[method-assign]  # the inherited one is of its `attend`

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rotation: Rotation | None = None,
        locality: RelativeBias | None = None,
        layout: TokenLayout = EVERY_TOKEN,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs of attention; that of packed sequences by `attend` for those of each length.

        Args:
            q, k, v: queries and keys, [B, H, N, d'], and values, [B, H, N, d].
            rotation, locality, layout, key_bias: fields of `AttentionContext`.

        Returns:
            Outputs, [B, H, N, d].

        Raises:
            ValueError: a part that this attention `lacks`.
        """
        given = {"rotation": rotation, "locality": locality, "key mask": layout.mask, "key bias": key_bias}
        check_has(type(self).__name__, self.lacks, {part: value is not None for part, value in given.items()})
        context = AttentionContext(rotation, locality, layout, key_bias)
        if layout.lengths is not None and not self.rotates_features:
            return attend_packed(self.attend, q, k, v, context)
        return self.attend(q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """Return the outputs of attention, [B, H, N, d], which are linear in the values; every backend defines this.

        Args:
            q, k, v: as in `forward`, before the rotation of queries and keys. Those of packed sequences are rotated
                before, and are a batch of sequences of one length.
            context: rotation, relative bias, layout of the tokens and bias of the keys.
        """
        raise NotImplementedError

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        rotation: Rotation | None = None,
        key_bias: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the implied attention matrix, dense and before any relative bias, for analysis: [B, H, N, M].

        Args:
            q, k: queries [B, H, N, d] and keys [B, H, M, d].
            rotation, key_bias: fields of `AttentionContext`.
            key_mask: mask of the keys, True for keys to attend to, [B, M].
        """
        layout = EVERY_TOKEN if key_mask is None else TokenLayout(mask=key_mask)
        return self.matrix(q, k, AttentionContext(rotation, None, layout, key_bias))

    def matrix(self, q: Tensor, k: Tensor, context: AttentionContext) -> Tensor:
        """Return `weights`; by default they are the output for the identity matrix as values."""
        return self.attend(q, k, identity_values(k, k.dtype), context)

    def feature_maps(self) -> list[FeatureMap]:
        """Return the feature maps among the parts of this attention."""
        return [module for module in self.modules() if isinstance(module, FeatureMap)]

    @property
    def has_random_features(self) -> bool:
        """Whether the backend draws random features."""
        return any(phi.has_random_features for phi in self.feature_maps())

    def redraw(self, step: int) -> None:
        """Draw new random features, a function of (seed, step) alone; nothing where there are none."""
        for phi in self.feature_maps():
            phi.redraw(step)
