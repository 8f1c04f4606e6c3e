"""Multi-head self-attention under a rotation of queries and keys."""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.bias import RelativeBias
from performer_string.layers.backends import AttentionBackend
from performer_string.layers.values import ValueMap
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout
from performer_string.ops.unit_length import with_length
from performer_string.ops.validation import check_layout, check_rotation_kind
from performer_string.position.rotation import Rotation
from performer_string.utils._compat import is_plain_linear
from performer_string.utils.cache import TensorCache
from performer_string.utils.dtype import without_autocast
from performer_string.utils.validation import check_heads, check_heads_of_part, check_kind, check_sizes

# Factor of the key gate's logits. A learning rate that suits weights is too small for logits of this size.
GATE_SCALE = 4.0


def gate_logits(x: Tensor, gate: Tensor) -> Tensor:
    """Return the bias 4 u_h x of each key in float32 or better: tokens [B, N, D], u [H, D] -> [B, H, N]."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        return GATE_SCALE * F.linear(x.to(dtype), gate.to(dtype)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head self-attention of tokens [B, N, D] under a rotation of queries and keys.

    A rotation R = B Rot(theta) B^T has a basis B for each head. It is folded into the projections, W <- B^T W. That is
    done once for each call instead of a product for each token, and once for all calls within `ViT.cached()`.

    Args:
        width: width D of the tokens.
        num_heads: number H of heads, a divisor of D.
        backend: attention backend, as `build_attention` returns it.
        qk_norm: whether to normalise queries and keys to unit length. The logits are then tau cos(q, k) with a learned
            temperature 0 < tau < max_temperature for each head. With a homogeneous feature map there is no temperature,
            which would have no effect. With `elu`, which has no logits, queries and keys have the length
            (tau d'^1/2)^1/2. There is no learned scale for each channel, which would not commute with the folded basis.
        max_temperature: upper bound of tau, which starts at a quarter of it.
        log_n_scaling: number N_0 of tokens in training; None for no scaling. Logits of N keys are multiplied by log N /
            log N_0. This keeps attention from spreading as the number of keys grows (arXiv:2202.12172). With a learned
            factor in place of 1 / log N_0 it is that of arXiv:2501.19399.
        qkv_bias: whether the projections of queries, keys and values have a bias.
        qk_dim: width d' of a head's queries and keys, for which the backend is built; None for that of the values, d.
        key_gate: whether to weigh each key by exp(4 u_h x), with u learned for each head from zero. A layer can then
            ignore some tokens, whatever their direction and number. RiemannFormer (arXiv:2506.07405v3) scales tokens
            likewise, by a sigmoid.
        locality: relative bias, which attenuates the values by distance, or is a bias of the logits.
        values: value map, which wraps the weighted sum over the keys.

    Raises:
        TypeError: a part that is given by its name, and not built.
        ValueError: a width that the heads do not divide; parts that were built for other heads or widths; a
            `log_n_scaling` of less than 2 tokens, or with a homogeneous feature map.
    """

    backend: AttentionBackend

    def __init__(
        self,
        width: int,
        num_heads: int,
        backend: AttentionBackend,
        *,
        qk_norm: bool = False,
        max_temperature: float = 16.0,
        log_n_scaling: int | None = None,
        key_gate: bool = False,
        qkv_bias: bool = True,
        qk_dim: int | None = None,
        locality: RelativeBias | None = None,
        values: ValueMap | None = None,
    ):
        super().__init__()
        check_heads(width, num_heads)
        self.num_heads, self.head_dim, self.max_temperature = num_heads, width // num_heads, max_temperature
        self.qk_dim = self.head_dim if qk_dim is None else qk_dim
        check_sizes(qk_dim=self.qk_dim)
        check_kind("backend", backend, AttentionBackend, "build_attention(...)")
        check_kind("locality", locality, RelativeBias | None, "build_locality(...)")
        check_kind("values", values, ValueMap | None, "build_value_map(...)")
        check_heads_of_part("feature map", getattr(backend, "phi", None), num_heads, self.qk_dim)
        check_heads_of_part("locality", locality, num_heads, None)
        check_heads_of_part("value map", values, num_heads, self.head_dim)
        if log_n_scaling is not None and log_n_scaling < 2:
            raise ValueError(
                f"log_n_scaling needs at least 2 tokens in training, for log N / log N_0, not {log_n_scaling}."
            )
        if log_n_scaling is not None and backend.homogeneous:
            raise ValueError(
                "log_n_scaling multiplies the logits, which has no effect with a homogeneous feature map (arc-cosine, "
                "or polynomial without lower): leave it off, or use softmax, favor+, favor+hyperbolic or polynomial "
                "with lower."
            )
        self.gate = nn.Parameter(torch.zeros(num_heads, width)) if key_gate else None
        self.backend, self.locality, self.values, self.log_n_scaling = backend, locality, values, log_n_scaling
        self.qkv = nn.Linear(width, 2 * num_heads * self.qk_dim + width, bias=qkv_bias)
        self.out = nn.Linear(width, width)
        self.qk_norm = qk_norm
        has_temperature = qk_norm and not backend.homogeneous  # the parameter is the logit of tau / max_temperature
        self.temperature = nn.Parameter(torch.full((num_heads,), 0.25).logit()) if has_temperature else None
        self.cache = TensorCache(1)

    def forward(self, x: Tensor, rotation: Rotation | None = None, layout: TokenLayout = EVERY_TOKEN) -> Tensor:
        """Project, normalise, rotate and attend.

        Args:
            x: tokens, [B, N, D].
            rotation: rotation of queries and keys from an encoding; None for no rotation.
            layout: layout of the tokens: which take part, and their positions, which a relative bias and a value map
                need.

        Returns:
            Outputs, [B, N, D].

        Raises:
            TypeError: a rotation or a layout of another kind.
            ValueError: tokens that are not [B, N, D], the rotation of an encoding that adds to the tokens, a layout of
                other tokens, or one without positions where a part needs them.
        """
        if x.ndim != 3:
            raise ValueError(f"tokens must be [B, N, D], not {list(x.shape)}.")
        check_rotation_kind(rotation)
        check_layout(layout, x.shape[0], x.shape[1])
        layout.check_lengths(x.shape[0], x.shape[1])
        if layout.positions is None and not (self.locality is None and self.values is None):
            raise ValueError("a layer with a locality or a value map needs the positions of its tokens in `layout`.")
        # A basis B is folded into the projections, so that the rest rotates planes. A rotation of features stays whole.
        basis, rest = None, rotation
        if rotation is not None and not self.backend.rotates_features:
            basis, rest = rotation.factor()
        q, k, v = self.project(x, basis)  # [B, H, N, d'] twice, [B, H, N, d]
        q, k = self.normalise_and_scale(q, k, x, layout)
        key_bias = None if self.gate is None else gate_logits(x, self.gate)

        def attend(values: Tensor) -> Tensor:
            out: Tensor = self.backend(
                q, k, values, rotation=rest, locality=self.locality, layout=layout, key_bias=key_bias
            )
            return out

        out = attend(v) if self.values is None else self.values(attend, v, tokens=x, queries=q, layout=layout)
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(-2)))  # [B, H, N, d] -> [B, N, D]

    def project(self, x: Tensor, basis: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys in the basis, and values: [B, N, D] -> [B, H, N, d'] twice and [B, H, N, d]."""
        if basis is not None and len(basis) not in (1, self.num_heads):
            raise ValueError(
                f"the rotation is of {len(basis)} heads, and not of {self.num_heads}: take by_layer(positions) of an "
                f"encoding that serves several layers."
            )
        foldable = self.is_foldable()
        if basis is None or not foldable:  # hooks, adapters and pruning must be called
            qkv = self.qkv(x)
        else:
            key = (x.device, self.qkv.weight.dtype)
            qkv = F.linear(x, *self.cache.get(key, partial(self.folded_projection, basis)))
        q, k, v = self.by_head(qkv)
        if basis is not None and not foldable:
            q, k = q @ basis.to(q.dtype), k @ basis.to(k.dtype)
        return q, k, v

    def by_head(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: [B, N, 2 H d' + H d] -> [B, H, N, d'] twice and [B, H, N, d]."""
        widths = (self.qk_dim, self.qk_dim, self.head_dim)
        parts = qkv.split([self.num_heads * width for width in widths], dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def normalise_and_scale(self, q: Tensor, k: Tensor, x: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """Return queries and keys, normalised if `qk_norm`, times the roots of tau and of log N / log N_0."""
        factor: Tensor | float | None = None
        if self.temperature is not None:
            tau = self.max_temperature * self.temperature.sigmoid()  # [H]
            logit_scale = self.backend.logit_scale or self.qk_dim**-0.5
            factor = (tau / logit_scale).sqrt()[:, None, None]
        if self.log_n_scaling is not None:
            growth = self.log_growth(x, layout) ** 0.5
            factor = growth if factor is None else factor * growth
        if self.qk_norm:
            length = cast("Tensor | None", factor)  # not a float: that is for layers without a temperature
            return with_length(q, length), with_length(k, length)
        return (q, k) if factor is None else (q * factor, k * factor)

    def log_growth(self, x: Tensor, layout: TokenLayout) -> float | Tensor:
        """Return log N / log N_0 for the N keys that take part: [B, 1, 1, 1] under a mask, [1, 1, N, 1] if packed."""
        assert self.log_n_scaling is not None
        dtype = torch.promote_types(x.dtype, torch.float32)
        if layout.lengths is not None:
            counts = layout.counts(x.device)
            keys = counts.repeat_interleave(counts, output_size=x.shape[1])[None, None, :, None].to(dtype)
        elif layout.mask is not None:
            keys = layout.mask.sum(-1)[:, None, None, None].to(dtype)
        elif isinstance(x.shape[1], int) and not torch.compiler.is_compiling():
            return math.log(max(1, x.shape[1])) / math.log(self.log_n_scaling)
        else:  # a graph for any size, where math.log would fix the size
            keys = torch.ones(x.shape[1], device=x.device, dtype=dtype).sum()
        return (keys.clamp(min=1).log() / math.log(self.log_n_scaling)).to(x.dtype)

    def is_foldable(self) -> bool:
        """Return whether the projection is a plain linear layer."""
        return is_plain_linear(self.qkv)

    def folded_projection(self, basis: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of the projections with B^T applied to the queries' and keys' rows.

        The bias is None where the projections have none.
        """
        count, sizes = 2 * self.num_heads * self.qk_dim, (2, self.num_heads, self.qk_dim)
        weight = self.qkv.weight
        dtype = torch.promote_types(torch.promote_types(weight.dtype, basis.dtype), torch.float32)
        transposed = basis.mT.to(dtype)  # [1 or H, d', d']
        with without_autocast(weight):  # weight and bias apart, so that both are contiguous
            pairs = weight[:count].unflatten(0, sizes).to(dtype)  # [2, H, d', D]
            folded = torch.cat([(transposed @ pairs).to(weight.dtype).flatten(0, 2), weight[count:]])
            bias = self.qkv.bias
            if bias is None:
                return folded, None
            shifted = (transposed @ bias[:count].unflatten(0, sizes)[..., None].to(dtype)).to(bias.dtype)
            return folded, torch.cat([shifted.flatten(), bias[count:]])

    @torch.no_grad()
    def tie_keys_to_queries(self) -> None:
        """Start with keys equal to the queries: W_K <- W_Q (mimetic initialisation, arXiv:2305.09828).

        Then q_i.k_j is large for similar tokens, and the rotation makes it fall off with their distance. This is the
        part of that initialisation that concerns queries and keys.
        """
        rows = self.num_heads * self.qk_dim
        queries, keys = self.qkv.weight[:rows], self.qkv.weight[rows : 2 * rows]  # [H d', D] each
        keys.copy_(queries)
