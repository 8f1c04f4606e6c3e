"""Linear attention in chunks of tokens that fit into the cache: never N x m features, forward or backward.

Plain torch operations, on any device and in any floating type. What is kept for the backward pass has the size of the
inputs and of the sums over the keys; features are computed again.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from performer_string.ops.chunk_sums import ExponentialSums, Keys, PowerSums
from performer_string.ops.flash import FlashSums, can_flash
from performer_string.ops.forms import FeatureForm
from performer_string.ops.rotary import apply_rotary
from performer_string.utils._compat import has_bf16_tiles
from performer_string.utils.numerics import chunk_slices

CACHE = 2**19  # features held at a time on a CPU: 2 MiB of float32, the fastest of the sizes tried
FLASH = 2**21  # tokens times features that torch's flash attention takes at a time, which holds none of them
DEVICE = 2**26  # the first on other devices, where a launch costs more than memory


def part(x: Tensor, samples: slice, tokens: slice) -> Tensor:
    """A chunk of [1 or H, 1 or B, N, .]."""
    return x[:, samples if x.shape[1] > 1 else slice(None), tokens]


class Walk:
    """The walk over the chunks of one attention: tensors [B, H, N, .], worked on as [H, B, N, .].

    Args:
        q, k, v: [B, H, N, d].
        weight: W of the feature map, [H, m, d].
        planes: cosines and sines of the rotation, [1 or H, 1 or B, N, P], or None.
        hidden: masked keys, [1, B, N, 1], or None.
        bias: of each key, [B, H, N], or None.
        form: of the feature map.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weight: Tensor,
        planes: tuple[Tensor, Tensor] | None,
        hidden: Tensor | None,
        bias: Tensor | None,
        form: FeatureForm,
    ):
        self.q, self.k, self.v = (x.transpose(0, 1) for x in (q, k, v))
        self.dtype = functools.reduce(torch.promote_types, (q.dtype, k.dtype, weight.dtype, torch.float32))
        self.low = torch.bfloat16 if v.dtype == torch.bfloat16 and has_bf16_tiles(v.device) else self.dtype
        self.weight, self.hidden, self.form = weight.to(self.dtype), hidden, form
        self.planes = None if planes is None else (planes[0].to(self.dtype), planes[1].to(self.dtype))
        self.bias = None if bias is None else bias.to(self.dtype).transpose(0, 1)[..., None]  # [H, B, N, 1]

    def split(self, flash: bool = False) -> None:
        """Choose the chunks of samples and of tokens."""
        heads, batch, tokens, _ = self.k.shape
        features = FLASH if flash else CACHE if self.q.device.type == "cpu" else DEVICE
        budget = max(1, features // (heads * self.weight.shape[1]))
        size = max(1, min(max(tokens, self.q.shape[2]), max(64, budget // 64 * 64)))  # of a chunk of tokens
        self.samples = chunk_slices(batch, max(1, budget // size))
        self.query_tokens, self.key_tokens = chunk_slices(self.q.shape[2], size), chunk_slices(tokens, size)

    def sums(self, learned: bool = False, flash: bool = False) -> ExponentialSums | PowerSums:
        kind = FlashSums if flash else ExponentialSums if self.form.kind == "exponential" else PowerSums
        return kind(self.form, self.weight, self.low, learned)

    def turned(self, x: Tensor, samples: slice, tokens: slice) -> Tensor:
        """A chunk of queries or keys, rotated, in the type of the features."""
        x = part(x, samples, tokens).to(self.dtype)
        if self.planes is None:
            return x
        return apply_rotary(x, *(part(p, samples, tokens) for p in self.planes))

    def turned_back(
        self, gradient: Tensor, x: Tensor, samples: slice, tokens: slice, sums: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """The gradient of a chunk x from that of x turned; those of the cosines and sines are added to `sums`."""
        if self.planes is None:
            return gradient
        cos, sin = (part(p, samples, tokens) for p in self.planes)
        if sums is not None:
            n, x = cos.shape[-1], part(x, samples, tokens).to(self.dtype)
            a, b, u, w = gradient[..., :n], gradient[..., n : 2 * n], x[..., :n], x[..., n : 2 * n]
            part(sums[0], samples, tokens).add_((a * u).addcmul_(b, w).sum_to_size(cos.shape))
            part(sums[1], samples, tokens).add_((b * u).addcmul_(a, w, value=-1).sum_to_size(cos.shape))
        return apply_rotary(gradient, cos, -sin)

    def mask(self, samples: slice, tokens: slice) -> Tensor | None:
        return None if self.hidden is None else part(self.hidden, samples, tokens)

    def keys(self, samples: slice, tokens: slice, v: Tensor) -> Keys:
        bias = None if self.bias is None else part(self.bias, samples, tokens)
        return Keys(self.turned(self.k, samples, tokens), v, self.mask(samples, tokens), bias)

    def forward(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [B, H, N, d_v] in the type of the values, and what the backward pass needs of the sums."""
        heads, batch, tokens, _ = self.q.shape
        out = torch.empty(batch, heads, tokens, self.v.shape[-1], dtype=self.v.dtype, device=self.v.device)
        states, everything = [], slice(None)
        flash = self.form.kind == "exponential" and self.low == self.dtype and can_flash(self.q, self.v, self.weight)
        self.split(flash)
        for s in self.samples:
            sums = self.sums(flash=flash)
            sums.begin(part(self.k, s, everything), self.v.shape[-1], self.mask(s, everything))
            for t in self.key_tokens:
                sums.add_keys(self.keys(s, t, part(self.v, s, t)))
            states.append(sums.close())
            for t in self.query_tokens:
                part(out.transpose(0, 1), s, t).copy_(sums.queries(self.turned(self.q, s, t)))
        return out, tuple(torch.cat(state, dim=1) for state in zip(*states, strict=True))

    def backward(
        self, out: Tensor, gradient: Tensor, state: tuple[Tensor, ...], learned: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of q, k, v, where there is one of the bias, and where learned of the weight, cosines and sines."""
        out, gradient = out.transpose(0, 1), gradient.transpose(0, 1)
        found = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        weight = torch.zeros_like(self.weight) if learned[0] else None
        bias = None if self.bias is None else torch.empty_like(self.bias)
        angles = None
        if learned[1] and self.planes is not None:
            angles = (torch.zeros_like(self.planes[0]), torch.zeros_like(self.planes[1]))
        self.split()
        for s in self.samples:
            sums = self.sums(learned[0])
            sums.restore(tuple(x[:, s] for x in state))
            for t in self.query_tokens:
                o, g = (part(x, s, t).to(self.dtype) for x in (out, gradient))
                dx = sums.queries_back(self.turned(self.q, s, t), o, g)
                part(found[0], s, t).copy_(self.turned_back(dx, self.q, s, t, angles))
            sums.close_back()
            for t in self.key_tokens:
                v = part(self.v, s, t).to(self.dtype)
                dx, dv, db = sums.keys_back(self.keys(s, t, v))
                part(found[1], s, t).copy_(self.turned_back(dx, self.k, s, t, angles))
                part(found[2], s, t).copy_(dv)
                if bias is not None and db is not None:
                    part(bias, s, t).copy_(db)
            if weight is not None and sums.weight_gradient is not None:
                weight += sums.weight_gradient
        dq, dk, dv = (x.transpose(0, 1) for x in found)
        return dq, dk, dv, None if bias is None else bias[..., 0].transpose(0, 1), weight, *(angles or (None, None))
