"""Attention of this library with the constructor, the call and the weights of torch.nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.feature_maps import RandomFeatures
from performer_string.layers.backends import build_attention, identity_values
from performer_string.ops.layout import TokenLayout
from performer_string.ops.validation import check_rotation_kind, check_sequences
from performer_string.position.rotation import Rotation
from performer_string.utils._compat import refuse_fast_path


def keep_own_features(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load state dicts without random features: the layer keeps its own draw, on the meta device its seed's draw."""
    backend = cast(nn.Module, module.backend)
    phi = getattr(backend, "phi", None)
    for name, value in backend.state_dict(prefix=f"{prefix}backend.").items():
        if not value.is_meta:
            state_dict.setdefault(name, value)
        elif name not in state_dict and isinstance(phi, RandomFeatures):  # else a key is missing
            device = next((x.device for key, x in state_dict.items() if key.startswith(prefix)), None)
            state_dict[name] = phi.draw(0).to(device, value.dtype)


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with linear attention. Weights have the same names, and torch's weights load.

    torch's layer loads these with `strict=False`, since it has no random features.

    Masks of keys, cross attention, `kdim`, `vdim`, `add_bias_kv` and `add_zero_attn` are supported. Masks of pairs of
    tokens (`attn_mask`, `is_causal`) and dropout of weights are not: linear attention never holds the weights.

    Args:
        embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: arguments of
            torch's layer.
        dropout: dropout rate of the weights, which must be 0.
        attention: attention backend, `linear` or `softmax`, or one of your own.
        feature_map, feature_options: name and options of the feature map of linear attention.
        attention_options: options of an attention of your own.
        seed: seed of the random features. Give each layer another, as `derive_seed(seed, layer)`.

    Raises:
        ValueError: dropout of weights, or an unknown name or option.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "linear",
        feature_map: str = "favor+",
        feature_options: Mapping[str, Any] | None = None,
        attention_options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ):
        if dropout:
            raise ValueError(
                f"dropout={dropout} drops attention weights, which linear attention never holds: use dropout=0, and "
                f"nn.Dropout behind the layer."
            )
        options = {"kdim": kdim, "vdim": vdim, "batch_first": batch_first, "device": device, "dtype": dtype}
        super().__init__(
            embed_dim, num_heads, bias=bias, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, **cast(Any, options)
        )
        refuse_fast_path(self)
        self.backend = build_attention(
            attention,
            head_dim=self.head_dim,
            num_heads=num_heads,
            feature_map=feature_map,
            seed=seed,
            feature_options=feature_options,
            attention_options=attention_options,
        ).to(device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(keep_own_features)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        rotation: Rotation | None = None,
        key_rotation: Rotation | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention of the queries to the keys.

        Args:
            query: queries, [N, B, E], or [B, N, E] with `batch_first`, or [N, E].
            key, value: keys and values, [M, B, kdim] and [M, B, vdim], or in the layout of the queries.
            key_padding_mask: mask of the keys, [B, M] or [M]: True for keys that take no part, or floats that are added
                to the logits.
            need_weights: whether to return the weights too, which takes N x M numbers. False by default, other than in
                torch.
            attn_mask: mask of pairs of tokens, which must be None.
            average_attn_weights: whether to return the mean of the weights over the heads.
            is_causal: whether attention is causal, which must be False.
            rotation: rotation of queries and keys from an encoding.
            key_rotation: rotation of the keys where their positions are not those of the queries, as in cross
                attention; `rotation` is then that of the queries. Both are of one encoding.

        Returns:
            Outputs of the shape of the queries, and the weights [B, N, M] or [B, H, N, M], or None.

        Raises:
            TypeError: a mask of the keys that is of integers.
            ValueError: inputs that do not fit together, a mask of pairs of tokens, nested tensors, a rotation that does
                not fit or rotates nothing, or one of the keys alone.
        """
        if any(x.is_nested for x in (query, key, value)):
            raise ValueError(
                "nested tensors are not supported, which nn.TransformerEncoder makes of padded sequences: build it "
                "with enable_nested_tensor=False, or set encoder.use_nested_tensor = False."
            )
        if attn_mask is not None or is_causal:
            name = "attn_mask" if attn_mask is not None else "is_causal"
            raise ValueError(
                f"{name} masks pairs of tokens, whose weights linear attention never holds: use key_padding_mask for "
                f"padding. There is no causal form."
            )
        widths = (self.embed_dim, cast(int, self.kdim), cast(int, self.vdim))
        check_sequences((query, key, value), widths, self.batch_first)
        batched = query.ndim == 3
        q, k, v = self.project(query, key, value)  # [B, H, N, d], [B, H, M, d] twice
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        mask, key_bias = self.key_mask(key_padding_mask, k)
        q, k = rotate_both(q, k, rotation, key_rotation)  # extra keys have no position
        k, v, mask, key_bias = self.with_extra_keys(k, v, mask, key_bias)
        layout = TokenLayout(mask=mask)

        def attend(values: Tensor) -> Tensor:
            return cast(Tensor, self.backend(q, k, values, layout=layout, key_bias=key_bias))

        out = self.out_proj(attend(v).transpose(1, 2).flatten(2))  # [B, N, E]
        weights = None
        if need_weights:
            weights = attend(identity_values(k, v.dtype))  # [B, H, N, M]
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        if not batched:
            return out[0], weights
        return out if self.batch_first else out.transpose(0, 1), weights

    def redraw(self, step: int) -> None:
        """Draw new random features, a function of (seed, step) alone."""
        self.backend.redraw(step)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, H, N, d] each."""
        bias = self.in_proj_bias
        if query is key is value and self.in_proj_weight is not None:
            projected = F.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
        else:
            together = self.in_proj_weight is not None
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)  # with `kdim` or `vdim`
            weights = self.in_proj_weight.chunk(3) if together else cast(tuple[Tensor, ...], separate)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            projected = tuple(F.linear(*each) for each in zip((query, key, value), weights, biases, strict=True))
        heads = []
        for each in projected:
            if each.ndim == 2:
                each = each[None]
            elif not self.batch_first:
                each = each.transpose(0, 1)
            heads.append(each.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2))
        return heads[0], heads[1], heads[2]

    def key_mask(self, padding: Tensor | None, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the mask of the keys, True for those that take part, and the bias of their logits [B, H, M]."""
        if padding is None:
            return None, None
        if padding.shape != (k.shape[0], k.shape[2]):
            raise ValueError(
                f"key_padding_mask must be [B, N] = [{k.shape[0]}, {k.shape[2]}], True or -inf for keys that take no "
                f"part, not {list(padding.shape)}."
            )
        if padding.dtype == torch.bool:
            return ~padding, None
        if not padding.is_floating_point():
            raise TypeError(
                f"key_padding_mask must be boolean, True for keys that take no part, or floating-point, added to the "
                f"logits, not {padding.dtype}."
            )
        takes_part = padding != -torch.inf
        return takes_part, padding.masked_fill(~takes_part, 0.0)[:, None].expand(-1, self.num_heads, -1)

    def with_extra_keys(
        self, k: Tensor, v: Tensor, mask: Tensor | None, key_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return keys and values, followed by the learned ones of `add_bias_kv` and the zeros of `add_zero_attn`."""
        count = 0
        if self.bias_k is not None and self.bias_v is not None:
            learned = [x.view(1, self.num_heads, 1, -1).expand(len(k), -1, -1, -1) for x in (self.bias_k, self.bias_v)]
            k, v, count = torch.cat([k, learned[0]], dim=2), torch.cat([v, learned[1]], dim=2), 1
        if self.add_zero_attn:
            k, v, count = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), count + 1
        mask = None if mask is None else F.pad(mask, (0, count), value=True)
        return k, v, mask, None if key_bias is None else F.pad(key_bias, (0, count))


def rotate_both(
    q: Tensor, k: Tensor, rotation: Rotation | None, key_rotation: Rotation | None
) -> tuple[Tensor, Tensor]:
    """Return queries [B, H, N, d] and keys [B, H, M, d], rotated alike, or each by a rotation of its own."""
    if rotation is None:
        if key_rotation is not None:
            raise ValueError(
                "key_rotation needs the rotation of the queries beside it: pass rotation=encoding(positions)."
            )
        return q, k
    if key_rotation is None:
        if q.shape[2] != k.shape[2]:
            raise ValueError(
                f"{q.shape[2]} queries and {k.shape[2]} keys have other positions: pass key_rotation=encoding(positions"
                f" of the keys) as well."
            )
        key_rotation = rotation
    for each, x in ((rotation, q), (key_rotation, k)):
        check_rotation_kind(each)
        each.check(x)
    return rotation.rotate(q), key_rotation.rotate(k)
