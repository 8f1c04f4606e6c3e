"""Linear attention in chunks of tokens that fit into the cache, without N x m features in either pass.

It consists of plain torch operations, on any device and in any floating type. Tensors saved for the backward pass have
the size of the inputs and of the sums over the keys; features are computed again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from performer_string.ops.chunked.exponential import ExponentialSums
from performer_string.ops.chunked.flash import FlashSums, can_flash
from performer_string.ops.chunked.power import PowerSums
from performer_string.ops.chunked.sums import ChunkSums, KeyChunk
from performer_string.ops.forms import FeatureForm
from performer_string.ops.rotary import angle_gradients, rotate_planes
from performer_string.utils._compat import has_fast_bf16
from performer_string.utils.numerics import chunk_slices

# Features held at a time on a CPU: 2 MiB of float32, which stay in the cache.
CACHE_FEATURES = 2**19
# Tokens times features that torch's flash attention takes at a time. It holds none of them.
FLASH_FEATURES = 2**21
# Features held at a time on other devices, where a launch costs more than memory.
DEVICE_FEATURES = 2**26

# Gradients of q, k, v, bias, weight, cos and sin.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def chunk_of(x: Tensor, samples: slice, tokens: slice) -> Tensor:
    """Return a chunk of a tensor [1 or H, 1 or B, N, .], which all samples share where their axis has size 1."""
    return x[:, samples if x.shape[1] > 1 else slice(None), tokens]


class ChunkInputs(NamedTuple):
    """Tensors that linear attention is computed from.

    Attributes:
        q, k, v: queries, keys and values, [B, H, N, d].
        bias: bias of each key, [B, H, N], or None.
        weight: weight W of the feature map, [H, m, d].
        cos, sin: cosines and sines of the rotation's angles, [1 or H, 1 or B, N, P], or None.
        masked: mask of the keys, [1, B, N, 1], True for keys to ignore; or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    weight: Tensor
    cos: Tensor | None
    sin: Tensor | None
    masked: Tensor | None


class ChunkLoop:
    """Loop over the chunks of one attention. Tensors [B, H, N, .] are transposed to [H, B, N, .].

    Args:
        inputs: queries, keys, values, and the other tensors of attention.
        form: equation of the feature map.
    """

    def __init__(self, inputs: ChunkInputs, form: FeatureForm):
        q, k, v, bias, weight, cos, sin, masked = inputs
        self.q, self.k, self.v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), weight.dtype)
        self.dtype = torch.promote_types(dtype, torch.float32)  # the type of features and sums
        rounds_values = v.dtype == torch.bfloat16 and has_fast_bf16(v.device)
        self.value_dtype = torch.bfloat16 if rounds_values else self.dtype
        self.weight, self.masked, self.form = weight.to(self.dtype), masked, form
        self.angles = None if cos is None or sin is None else (cos.to(self.dtype), sin.to(self.dtype))
        self.bias = None if bias is None else bias.to(self.dtype).transpose(0, 1)[..., None]  # [H, B, N, 1]

    def chunks(self, flash: bool = False) -> tuple[list[slice], list[slice], list[slice]]:
        """Return the chunks of samples, of queries and of keys.

        Args:
            flash: whether torch's flash attention computes the sums.
        """
        heads, batch, tokens, _ = self.k.shape
        features = FLASH_FEATURES if flash else CACHE_FEATURES if self.q.device.type == "cpu" else DEVICE_FEATURES
        budget = max(1, features // (heads * self.weight.shape[1]))
        queries = self.q.shape[2]
        multiple_of_64 = max(64, budget // 64 * 64)
        size = max(1, min(max(tokens, queries), multiple_of_64))  # tokens in a chunk
        return chunk_slices(batch, max(1, budget // size)), chunk_slices(queries, size), chunk_slices(tokens, size)

    def sums(self, learned: bool = False, flash: bool = False) -> ChunkSums:
        """Return the empty sums over the keys of a group of samples.

        Args:
            learned: whether a gradient of the weight is wanted.
            flash: whether torch's flash attention computes them.
        """
        kind = ExponentialSums if self.form.kind == "exponential" else PowerSums
        return (FlashSums if flash else kind)(self.form, self.weight, self.value_dtype, learned)

    def rotated(self, x: Tensor, samples: slice, tokens: slice) -> Tensor:
        """Return a rotated chunk of queries or keys in the type of the features: [H, B, N, d] -> [H, B, C, d]."""
        x = x[:, samples, tokens].to(self.dtype)
        if self.angles is None:
            return x
        return rotate_planes(x, chunk_of(self.angles[0], samples, tokens), chunk_of(self.angles[1], samples, tokens))

    def rotated_back(
        self, gradient: Tensor, x: Tensor, samples: slice, tokens: slice, angle_sums: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return the gradient of a chunk x from that of the rotated chunk.

        Args:
            gradient: gradient of the rotated chunk, [H, B, C, d].
            x: all queries or keys, [H, B, N, d].
            samples, tokens: slices of the chunk.
            angle_sums: gradients of the cosines and sines to add to; None where they are not wanted.

        Returns:
            R^-1 times the gradient, [H, B, C, d].
        """
        if self.angles is None:
            return gradient
        cos, sin = chunk_of(self.angles[0], samples, tokens), chunk_of(self.angles[1], samples, tokens)
        if angle_sums is not None:
            found = angle_gradients(gradient, x[:, samples, tokens].to(self.dtype), cos.shape)
            for total, part in zip(angle_sums, found, strict=True):
                chunk_of(total, samples, tokens).add_(part)
        return rotate_planes(gradient, cos, -sin)

    def keys(self, samples: slice, tokens: slice, v: Tensor) -> KeyChunk:
        """Return a chunk of keys with its values `v`, [H, B, C, d_v]."""
        bias = None if self.bias is None else self.bias[:, samples, tokens]
        masked = None if self.masked is None else chunk_of(self.masked, samples, tokens)
        return KeyChunk(self.rotated(self.k, samples, tokens), v, masked, bias)

    def forward(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return outputs [B, H, N, d_v] in the type of the values, and the sums that the backward pass needs."""
        heads, batch, tokens, _ = self.q.shape
        out = torch.empty(batch, heads, tokens, self.v.shape[-1], dtype=self.v.dtype, device=self.v.device)
        by_head = out.transpose(0, 1)
        rounds_values = self.value_dtype != self.dtype
        flash = self.form.kind == "exponential" and not rounds_values and can_flash(self.q, self.v, self.weight)
        samples, query_tokens, key_tokens = self.chunks(flash)
        states = []
        for s in samples:
            sums = self.sums(flash=flash)
            sums.begin(self.k[:, s], self.v.shape[-1], None if self.masked is None else self.masked[:, s])
            for t in key_tokens:
                sums.add_keys(self.keys(s, t, self.v[:, s, t]))
            states.append(sums.close())
            for t in query_tokens:
                by_head[:, s, t].copy_(sums.outputs(self.rotated(self.q, s, t)))
        if len(states) == 1:
            return out, states[0]
        return out, tuple(torch.cat(state, dim=1) for state in zip(*states, strict=True))

    def backward(
        self, out: Tensor, gradient: Tensor, state: tuple[Tensor, ...], learned: bool, learned_angles: bool
    ) -> Gradients:
        """Return the gradients of q, k, v, bias, weight, cos and sin.

        Args:
            out, gradient: outputs and their gradient, [B, H, N, d_v].
            state: sums that `forward` returned.
            learned: whether the gradient of the weight is wanted.
            learned_angles: whether the gradients of the cosines and sines are wanted.

        Returns:
            Gradients of each input's shape; None for inputs that are missing or whose gradient is not wanted.
        """
        out, gradient = out.transpose(0, 1), gradient.transpose(0, 1)
        q_gradient, k_gradient, v_gradient = (torch.empty_like(x) for x in (self.q, self.k, self.v))
        weight_gradient = torch.zeros_like(self.weight) if learned else None
        bias_gradient = None if self.bias is None else torch.empty_like(self.bias)
        angle_gradients = None
        if learned_angles and self.angles is not None:
            angle_gradients = (torch.zeros_like(self.angles[0]), torch.zeros_like(self.angles[1]))
        samples, query_tokens, key_tokens = self.chunks()
        for s in samples:
            sums = self.sums(learned)
            sums.restore(tuple(x[:, s] for x in state))
            for t in query_tokens:
                out_chunk, gradient_chunk = out[:, s, t].to(self.dtype), gradient[:, s, t].to(self.dtype)
                dx = sums.backward_queries(self.rotated(self.q, s, t), out_chunk, gradient_chunk)
                q_gradient[:, s, t].copy_(self.rotated_back(dx, self.q, s, t, angle_gradients))
            sums.backward_close()
            for t in key_tokens:
                dx, dv, db = sums.backward_keys(self.keys(s, t, self.v[:, s, t].to(self.dtype)))
                k_gradient[:, s, t].copy_(self.rotated_back(dx, self.k, s, t, angle_gradients))
                v_gradient[:, s, t].copy_(dv)
                if bias_gradient is not None and db is not None:
                    bias_gradient[:, s, t].copy_(db)
            if weight_gradient is not None and sums.weight_gradient is not None:
                weight_gradient += sums.weight_gradient
        dq, dk, dv = (x.transpose(0, 1) for x in (q_gradient, k_gradient, v_gradient))
        bias_gradient = None if bias_gradient is None else bias_gradient[..., 0].transpose(0, 1)
        return dq, dk, dv, bias_gradient, weight_gradient, *(angle_gradients or (None, None))
