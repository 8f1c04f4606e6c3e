"""The interface of an attention backend."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from performer_string.bias import RelativeBias
from performer_string.ops.context import AttentionContext
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.position.rotation import Rotation


def identity_values(k: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the identity matrix as the values of keys [B, H, N, d]: outputs are then the weights, [B, H, N, N]."""
    return torch.eye(k.shape[-2], device=k.device, dtype=dtype).expand(*k.shape[:2], -1, -1)


class AttentionBackend(nn.Module):
    """A way to compute attention, as the layer, the trainer's diagnostics and the evaluations call it.

    Attributes:
        homogeneous: whether a common factor of queries or keys changes no weight, so that a temperature has no effect.
        logit_scale: scale s of the logits s q.k; None for d^-1/2, or where there are no logits.
        rotates_features: whether the rotation is applied to the features, and not to queries and keys.
        lacks: options of a layer, and parts of `AttentionContext`, that the backend does not support.
    """

    homogeneous: bool = False
    logit_scale: float | None = None
    rotates_features: bool = False
    lacks: frozenset[str] = frozenset()

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
        """Return the outputs of attention.

        Args:
            q, k, v: queries and keys, [B, H, N, d'], and values, [B, H, N, d].
            rotation, locality, layout, key_bias: fields of `AttentionContext`.

        Returns:
            Outputs, [B, H, N, d].
        """
        return self.attend(q, k, v, AttentionContext(rotation, locality, layout, key_bias))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """Return the outputs of attention; every backend implements this method."""
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

    @property
    def has_random_features(self) -> bool:
        """Whether the backend draws random features."""
        return False

    def redraw(self, step: int) -> None:
        """Draw new random features, a function of (seed, step) alone; nothing where there are none."""
