"""Attention of this library with the constructor and the weights of performer_pytorch.SelfAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.feature_maps import build_feature_map
from performer_string.layers.backends import LinearBackend
from performer_string.layers.multihead import keep_own_features
from performer_string.ops.layout import TokenLayout
from performer_string.ops.validation import check_mask, check_rotation
from performer_string.position.rotation import Rotation


def load_one_draw(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load weights of performer_pytorch, whose draw [m, d] serves all heads: [H, m, d] here."""
    draw = state_dict.pop(f"{prefix}fast_attention.projection_matrix", None)
    if draw is not None:
        heads = cast(int, module.heads)
        state_dict[f"{prefix}backend.phi.projection"] = draw[None].expand(heads, -1, -1).contiguous()
    keep_own_features(module, state_dict, prefix)


class PerformerSelfAttention(nn.Module):
    """performer_pytorch.SelfAttention without its epsilons, with a draw for each head, and with key masks.

    Weights of performer_pytorch load, its draw of the features included.

    Args:
        dim: width D of the tokens.
        causal: whether attention is causal, which must be False.
        heads, dim_head: number H and width d of heads; `dim_head=None` for D / H.
        local_heads: number of heads with a window, which must be 0.
        local_window_size: window of local heads, without effect.
        nb_features: number m of features; d log d by default.
        feature_redraw_interval: number of steps between redraws, without effect: call `redraw`. In performer_pytorch,
            `Performer` does that.
        generalized_attention: whether features are relu(W x), the `arc-cosine` map of order 1, instead of `favor+`.
        kernel_fn: function of the generalised attention, which must be ReLU.
        dropout: dropout rate of the outputs.
        no_projection: whether attention has no random features, which must be False.
        qkv_bias, attn_out_bias: whether the projections have biases.
        seed: seed of the random features. Give each layer another, as `derive_seed(seed, layer)`.

    Raises:
        ValueError: an option that is not supported, by its name.
    """

    def __init__(
        self,
        dim: int,
        causal: bool = False,
        heads: int = 8,
        dim_head: int | None = 64,
        local_heads: int = 0,
        local_window_size: int = 256,
        nb_features: int | None = None,
        feature_redraw_interval: int | None = 1000,
        generalized_attention: bool = False,
        kernel_fn: Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
        no_projection: bool = False,
        qkv_bias: bool = False,
        attn_out_bias: bool = True,
        *,
        seed: int = 0,
    ):
        super().__init__()
        if causal:
            raise ValueError("causal=True: attention here is bidirectional. There is no causal form.")
        if local_heads:
            raise ValueError(
                f"local_heads={local_heads}: there are no heads with a window. SelfAttention of this library takes a "
                f"locality, which is for images too."
            )
        if no_projection:
            raise ValueError(
                "no_projection=True is another attention, with softmax over the channels: its scores are no function "
                "of inner products, so that rotations by position would mean nothing."
            )
        if kernel_fn is not None and not (isinstance(kernel_fn, nn.ReLU) or kernel_fn in (F.relu, torch.relu)):
            raise ValueError(
                f"kernel_fn={kernel_fn}: known is ReLU, the arc-cosine map of order 1. Other maps are feature maps of "
                f"this library: attention='linear' with feature_map."
            )
        if dim_head is None and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by {heads} heads: give dim_head.")
        width = dim // heads if dim_head is None else dim_head
        count = int(width * math.log(width)) if nb_features is None else nb_features
        self.heads, self.dim_head = heads, width
        feature_map = "arc-cosine" if generalized_attention else "favor+"
        self.backend = LinearBackend(
            build_feature_map(feature_map, head_dim=width, num_heads=heads, seed=seed, num_features=count)
        )
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * width, bias=qkv_bias) for _ in range(3))
        self.to_out = nn.Linear(heads * width, dim, bias=attn_out_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_load_state_dict_pre_hook(load_one_draw)

    def redraw(self, step: int) -> None:
        """Draw new random features, a function of (seed, step) alone."""
        self.backend.redraw(step)

    def forward(
        self,
        x: Tensor,
        pos_emb: Tensor | None = None,
        context: None = None,
        mask: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Compute self-attention.

        Args:
            x: tokens, [B, N, D].
            pos_emb: rotary embedding of performer_pytorch, [1, N, d]: sines, then cosines, of d / 2 angles.
            context: tokens of cross attention, which must be None.
            mask: mask of the tokens, [B, N], True for tokens to attend to.
            rotation: rotation of queries and keys from an encoding of this library.

        Returns:
            Outputs, [B, N, D].

        Raises:
            ValueError: a context, both rotations, or the rotation of an encoding that adds to the tokens.
        """
        if context is not None:
            raise ValueError("context: this is self-attention. Use MultiheadAttention(query, key, value).")
        if pos_emb is not None and rotation is not None:
            raise ValueError("pos_emb and rotation both rotate queries and keys: give one of them.")
        check_mask("token", mask, x.shape[0], x.shape[1], "mask")
        sizes = (self.heads, self.dim_head)
        q, k, v = (each(x).unflatten(-1, sizes).transpose(1, 2) for each in (self.to_q, self.to_k, self.to_v))
        check_rotation(rotation, q, k)
        if pos_emb is not None:
            q, k = rotate_interleaved(q, pos_emb), rotate_interleaved(k, pos_emb)
        out = self.backend(q, k, v, rotation=rotation, layout=TokenLayout(mask=mask))  # [B, H, N, d]
        return cast(Tensor, self.dropout(self.to_out(out.transpose(1, 2).flatten(2))))


def rotate_interleaved(x: Tensor, angles: Tensor) -> Tensor:
    """Return x rotated in the planes (2 p, 2 p + 1).

    Args:
        x: queries or keys, [B, H, N, d].
        angles: sines, then cosines, of d / 2 angles, [1, N, d].

    Returns:
        Rotated queries or keys, [B, H, N, d].
    """
    sin, cos = angles.to(x.dtype).chunk(2, dim=-1)  # [1, N, d / 2]
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
