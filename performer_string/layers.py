"""Self-attention with its projections, folded basis, rotation, locality and structure on the values."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from performer_string.attend import Attend, Focus
from performer_string.kept import Kept
from performer_string.locality import OffsetKernel
from performer_string.locality.lattice import Lattice
from performer_string.rotation import Rotation
from performer_string.values import Surroundings, ValueMap

# Of the gate's logits: learning rates are chosen for weights, and these have further to go.
GATE = 4.0


class SelfAttention(nn.Module):
    """Multi-head self-attention of tokens [B, N, D] under a rotation of queries and keys.

    A rotation's basis B is folded into the projections, W <- B^T W, once a call and in evaluation once for all: d x d
    for each head, instead of a product for each token.

    Args:
        width: D.
        num_heads: H, a divisor of D.
        attend: how to attend.
        qk_norm: normalise queries and keys to unit length, so that the logits are tau cos(q, k) with a learned
            temperature 0 < tau < max_temperature for each head; none with homogeneous features, which see no factor
            of the logits. There is no learned scale for each channel, since that would not commute with the folded
            basis.
        max_temperature: the bound of tau, which starts at a quarter of it.
        log_scale: N_0, the number of tokens in training: logits are multiplied by log N / log N_0 for N keys, which
            keeps attention from spreading as they grow in number (Chiang and Cholak, arXiv:2202.12172; with a learned
            factor in place of 1 / log N_0, Nakanishi, arXiv:2501.19399). None for no such factor.
        key_gate: weigh each key by exp(4 u_h x), u learned for each head from zero, so that a layer can do without some
            tokens whatever their direction and number. RiemannFormer (arXiv:2506.07405v3) scales tokens likewise, by a
            sigmoid.
        locality: attenuates the values by distance, or is a bias of the logits.
        values: a structure on the values, around all else.

    Raises:
        ValueError: a width that the heads do not divide; a log_scale of less than 2 tokens, or with homogeneous
            features, which no factor of the logits reaches.
    """

    attend: Attend

    def __init__(
        self,
        width: int,
        num_heads: int,
        attend: Attend,
        *,
        qk_norm: bool = False,
        max_temperature: float = 16.0,
        log_scale: int | None = None,
        key_gate: bool = False,
        locality: OffsetKernel | None = None,
        values: ValueMap | None = None,
    ):
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"the width {width} is not divisible by {num_heads} heads.")
        self.num_heads, self.head_dim, self.max_temperature = num_heads, width // num_heads, max_temperature
        if log_scale is not None and log_scale < 2:
            raise ValueError(f"log_scale needs at least 2 tokens in training, for log N / log N_0, not {log_scale}.")
        if log_scale is not None and attend.homogeneous:
            raise ValueError(
                "log_scale multiplies the logits, which has no effect with a homogeneous feature map (relu, or "
                "polynomial without lower): leave it off, or use softmax, favor+, favor+hyperbolic or polynomial with "
                "lower."
            )
        self.gate = nn.Parameter(torch.zeros(num_heads, width)) if key_gate else None
        self.attend, self.locality, self.values, self.log_scale = attend, locality, values, log_scale
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.qk_norm = qk_norm
        seen = qk_norm and not attend.homogeneous
        self.temperature = nn.Parameter(torch.full((num_heads,), 0.25).logit()) if seen else None
        self.kept = Kept(1)

    @torch.no_grad()
    def tie(self) -> None:
        """Start with keys that are the queries: W_K <- W_Q.

        Then q_i.k_j is large for tokens that are alike, and where they are, the rotation makes it fall off with their
        distance. The part on queries and keys of Trockman and Kolter's mimetic initialisation, arXiv:2305.09828.
        """
        queries, keys, _ = self.qkv.weight.chunk(3)  # [D, D] each
        keys.copy_(queries)

    def plain(self) -> bool:
        """Whether the projection is its weight and bias and nothing else: no adapter, pruning, hook, quantised weight
        or the like."""
        own = "forward" in vars(self.qkv)
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        hooked = any(getattr(self.qkv, kind) for kind in kinds)
        if type(self.qkv) is not nn.Linear or self.qkv.bias is None or hooked or own:
            return False
        return not hasattr(self.qkv.weight, "__tensor_flatten__")  # a tensor made of others, as quantised ones are

    def fold(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Weight [3D, D] and bias [3D] of the projections with B^T applied to the queries' and keys' rows."""
        sizes = (3, self.num_heads, self.head_dim)
        weight, bias = (x.unflatten(0, sizes) for x in (self.qkv.weight, self.qkv.bias))  # [3, H, d, D], [3, H, d]

        def turned(part: Tensor) -> Tensor:
            dtype = torch.promote_types(torch.promote_types(part.dtype, basis.dtype), torch.float32)
            return torch.cat([(basis.mT.to(dtype) @ part[:2].to(dtype)).to(part.dtype), part[2:]])

        with torch.autocast(weight.device.type, enabled=False):  # weight and bias apart: both come out contiguous
            return turned(weight).flatten(0, 2), turned(bias[..., None]).flatten()

    def project(self, x: Tensor, basis: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys in the basis, and values: [B, N, D] -> [B, H, N, d] each."""
        plain = self.plain()
        if basis is None or not plain:  # what hooks or stands for the projection (adapters, pruning) has its say
            qkv = self.qkv(x)
        elif self.training or torch.is_grad_enabled():
            qkv = F.linear(x, *self.fold(basis))
        else:
            sources = (basis, *self.qkv.parameters())
            qkv = F.linear(x, *self.kept.get("folded", sources, lambda: self.fold(basis)))
        qkv = qkv.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)  # [3, B, H, N, d]
        q, k, v = qkv.unbind(0)
        if basis is not None and not plain:
            q, k = q @ basis.to(q.dtype), k @ basis.to(k.dtype)
        return q, k, v

    def log_growth(self, x: Tensor, key_mask: Tensor | None) -> float | Tensor:
        """log N / log N_0 for the N keys that take part, [B, 1, 1, 1] under a mask."""
        assert self.log_scale is not None
        if key_mask is None:
            return math.log(x.shape[1]) / math.log(self.log_scale)
        keys = key_mask.sum(-1)[:, None, None, None].to(torch.promote_types(x.dtype, torch.float32))
        return (keys.clamp(min=1).log() / math.log(self.log_scale)).to(x.dtype)

    def gate_logits(self, x: Tensor, gate: Tensor) -> Tensor:
        """4 u_h x in float32 or better: tokens [B, N, D], u [H, D] -> [B, H, N]."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return GATE * F.linear(x.to(dtype), gate.to(dtype)).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        key_mask: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        num_prefix: int = 0,
        places: Tensor | None = None,
        lattice: Lattice | None = None,
    ) -> Tensor:
        """Tokens to tokens, [B, N, D]; a locality and a structure on the values need the `positions` [N, C] too, of
        which the latter sees `places` [B, N, C] instead, where samples differ by a move that the former does not see,
        and the `lattice` that they are, where that is known.
        """
        if positions is None and not (self.locality is None and self.values is None):
            raise ValueError("a layer with a locality or a structure on the values needs the positions of its tokens.")
        basis, rotation = rotation.factor()
        if basis is not None and len(basis) not in (1, self.num_heads):
            raise ValueError(
                f"the rotation is of {len(basis)} heads, and not of {self.num_heads}: take by_layer(positions) of an "
                f"encoding that serves several layers."
            )
        q, k, v = self.project(x, basis)
        if self.qk_norm:
            least = max(1e-12, torch.finfo(q.dtype).tiny)  # in fp16 1e-12 is zero
            q, k = F.normalize(q, dim=-1, eps=least), F.normalize(k, dim=-1, eps=least)
        if self.temperature is not None:
            tau = self.max_temperature * self.temperature.sigmoid()  # [H]
            seen = self.attend.logit_scale or self.head_dim**-0.5  # logits are seen times q.k
            scale = (tau / seen).sqrt()[:, None, None]
            q, k = q * scale, k * scale
        key_bias = None if self.gate is None else self.gate_logits(x, self.gate)
        if self.log_scale is not None:
            growth = self.log_growth(x, key_mask) ** 0.5  # each of q and k gets the root
            q, k = q * growth, k * growth
        focus = None if self.locality is None else Focus(self.locality, cast(Tensor, positions), num_prefix)

        def attend(values: Tensor) -> Tensor:
            given = {"rotation": rotation, "focus": focus, "key_mask": key_mask, "key_bias": key_bias}
            return cast(Tensor, self.attend(q, k, values, **given))

        if self.values is None:
            out = attend(v)
        else:
            shared = cast(Tensor, positions)
            own = shared if places is None else places
            out = self.values(attend, v, Surroundings(x, q, shared, own, num_prefix, key_mask, lattice))
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(-2)))  # [B, N, D]
