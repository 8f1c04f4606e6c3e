"""The attention of a ViT of timm, computed by a backend of this library. Weights and their names stay."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.bias import RelativeBias
from performer_string.layers.attention import gate_logits
from performer_string.layers.backends import AttentionBackend
from performer_string.layers.multihead import keep_own_features
from performer_string.layers.values import ValueMap
from performer_string.layers.values.gating import FiberGating
from performer_string.models.config import patch_grid
from performer_string.models.convert.low_rank import Narrowing
from performer_string.ops.layout import EVERY_TOKEN, TokenLayout, make_grid
from performer_string.position import Encoding, SeparableEncoding
from performer_string.position.grid import PositionMode, grid_positions, grid_steps, with_prefix
from performer_string.utils._compat import is_plain_linear


class PatchGrid:
    """Grid of the patches of a thread's latest images, since timm passes tokens to an attention without positions.

    A thread without images of its own has the grid of the latest thread. Autograd's threads need that: on a GPU they
    compute blocks again.

    Args:
        train_grid: number of patches along each axis of the images that the model was built for.
        mode: position mode of `grid_positions`.
        num_prefix: number of tokens before the patches.
    """

    def __init__(self, train_grid: tuple[int, ...], mode: PositionMode, num_prefix: int):
        self.train_grid, self.mode, self.num_prefix = train_grid, mode, num_prefix
        self.shape = train_grid
        self.shape_by_thread: dict[int, tuple[int, ...]] = {}

    def record(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Remember the grid of images [B, channels, height, width]; a forward pre-hook of the patch embedding."""
        patch = tuple(cast(Any, module).patch_size)  # its present size, which `set_input_size` may change
        sizes = tuple(inputs[0].shape[2:])
        if getattr(module, "dynamic_img_pad", False):  # timm then pads images to whole patches
            sizes = tuple(-(-size // side) * side for size, side in zip(sizes, patch, strict=True))
        shape = self.shape = patch_grid(sizes, patch)
        if torch.compiler.is_compiling():  # one program records the grid and reads it
            self.shape_by_thread = {}
        else:
            self.shape_by_thread[get_ident()] = shape

    def layout(self, x: Tensor) -> TokenLayout:
        """Return the positions of tokens [B, P + N, D].

        Raises:
            ValueError: another number of tokens than the grid has.
        """
        train_grid = self.train_grid if self.mode == "interpolate" else None
        dtype = torch.promote_types(x.dtype, torch.float32)
        own = None if torch.compiler.is_compiling() else self.shape_by_thread.get(get_ident())
        shape = self.shape if own is None else own
        positions = grid_positions(shape, mode=self.mode, train_grid=train_grid, device=x.device, dtype=dtype)
        tokens = self.num_prefix + positions.shape[0]  # not len(): an export is for any size
        if x.shape[1] != tokens:
            raise ValueError(
                f"attention with positions got {x.shape[1]} tokens, and {' x '.join(map(str, shape))} patches "
                f"with {self.num_prefix} prefix tokens are {tokens}: call the whole model on images, without patch "
                f"dropout."
            )
        regular = make_grid(shape, grid_steps(shape, self.mode, train_grid))
        return TokenLayout(with_prefix(positions, self.num_prefix), regular, self.num_prefix)


class TimmAttention(nn.Module):
    """Attention of timm with its own projections, norms and gates, and parts of this library.

    Args:
        source: `Attention`, `AttentionRope` or `EvaAttention` of timm. Its parameters are shared, not copied.
        backend: attention backend.
        apply_rope: function that rotates queries or keys [B, H, N, d] by the angles of timm's model, its
            `apply_rot_embed_cat`; None to leave that rotation out.
        encoding: encoding of queries and keys, or None.
        locality: relative bias, which attenuates the values by distance, or None.
        grid: grid of the patches, for an encoding, a relative bias or a value map.
        values: value map, which wraps the weighted sum over the keys, or None.
        key_gate: whether to weigh each key by exp(4 u_h x), as `SelfAttention`, with u learned from zero.

    `narrow` makes its queries and keys narrower by fixed maps after timm's projections.
    """

    qkv: Any  # the parts of timm's attention, some of which are missing
    q_bias: Any
    k_bias: Any
    v_bias: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    q_norm: nn.Module
    k_norm: nn.Module
    norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module

    def __init__(
        self,
        source: nn.Module,
        backend: AttentionBackend,
        apply_rope: Callable[..., Tensor] | None,
        encoding: Encoding | None,
        locality: RelativeBias | None,
        grid: PatchGrid | None,
        values: ValueMap | None = None,
        key_gate: bool = False,
    ):
        super().__init__()
        for name, module in source.named_children():
            self.add_module(name, module)
        for name, parameter in source.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        saved = source.state_dict()
        for name, buffer in source.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=name in saved)
        self.num_heads = cast(Any, source).num_heads
        self.rope_prefix = getattr(source, "num_prefix_tokens", 0)
        self.rotate_half = getattr(source, "rotate_half", False)
        self.backend, self.apply_rope, self.encoding, self.locality = backend, apply_rope, encoding, locality
        self.grid, self.values = grid, values
        proj = cast(nn.Linear, cast(Any, source).proj)
        gate = proj.weight.new_zeros(self.num_heads, proj.out_features)
        self.key_gate = nn.Parameter(gate) if key_gate else None

        self.narrow_q: Tensor | None = None
        self.narrow_k: Tensor | None = None
        self.kept: Tensor | None = None
        self.register_load_state_dict_pre_hook(keep_own_features)

    def redraw(self, step: int) -> None:
        """Draw new random features, a function of (seed, step) alone."""
        self.backend.redraw(step)

    def narrow(self, found: Narrowing, dimensions: Tensor | None) -> None:
        """Map queries and keys to fewer dimensions.

        Args:
            found: maps to fewer dimensions, for logits of the same scale.
            dimensions: dimensions of timm's heads that stay, [H, d'], whose angles are then taken; None without a
                rotation.
        """
        del self.narrow_q, self.narrow_k, self.kept
        weight = cast(Any, self.proj).weight
        self.register_buffer("narrow_q", found.q.to(weight))
        self.register_buffer("narrow_k", found.k.to(weight))
        self.register_buffer("kept", dimensions)

    def is_foldable(self) -> bool:
        """Return whether the basis of the encoding can be folded into maps or projections of queries and keys."""
        if any(isinstance(part, FiberGating) and part.source == "query" for part in self.modules()):
            return False  # its weights are for queries in another basis
        if self.narrow_q is not None:
            return True
        norms = (self.q_norm, self.k_norm)
        return all(isinstance(norm, nn.Identity) for norm in norms) and is_plain_linear(getattr(self, "qkv", norms[0]))

    @torch.no_grad()
    def fold_basis(self, basis: Tensor) -> None:
        """Fold the basis of the encoding, [1 or H, d', d'], into the maps or projections, in place."""
        cast(SeparableEncoding, self.encoding).mark_folded(basis)
        if self.narrow_q is not None and self.narrow_k is not None:
            for narrow in (self.narrow_q, self.narrow_k):  # [H, d', d]
                narrow.copy_(basis.mT.to(narrow) @ narrow)
            return
        sizes, transposed = (3, self.num_heads, -1), basis.mT.double()
        parts = [self.qkv.weight, *([] if self.qkv.bias is None else [self.qkv.bias[:, None]])]  # [3 H d, D or 1]
        for queries_and_keys in (part.unflatten(0, sizes)[:2] for part in parts):
            queries_and_keys.copy_(transposed @ queries_and_keys.double())
        q_bias = getattr(self, "q_bias", None)
        for bias in () if q_bias is None else (q_bias, self.k_bias):
            bias.copy_((transposed @ bias.double().view(self.num_heads, -1, 1)).flatten())

    def forward(self, x: Tensor, rope: Tensor | None = None, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        """Compute self-attention.

        Args:
            x: tokens, [B, N, D].
            rope: sines and cosines of timm's model, or None.
            attn_mask, is_causal: masks of pairs of tokens, which are not supported.

        Returns:
            Outputs, [B, N, D].

        Raises:
            ValueError: a mask of pairs of tokens.
        """
        if attn_mask is not None or is_causal:
            raise ValueError("attn_mask and is_causal are masks of pairs of tokens, which are not supported.")
        q, k, v = self.project(x)
        if self.narrow_q is not None and self.narrow_k is not None:
            q, k = q @ self.narrow_q.mT.to(q.dtype), k @ self.narrow_k.mT.to(k.dtype)  # [B, H, N, d']
        queries = q  # before their rotation
        if rope is not None and self.apply_rope is not None:
            q, k = (self.rotated(each, rope).to(v.dtype) for each in (q, k))
        layout = EVERY_TOKEN if self.grid is None else self.grid.layout(x)
        rotation = None
        if self.encoding is not None and not self.encoding.additive:
            rotation = self.encoding(layout.positions)
        key_bias = None if self.key_gate is None else gate_logits(x, self.key_gate)

        def attend(values: Tensor) -> Tensor:
            options = {"rotation": rotation, "locality": self.locality, "layout": layout, "key_bias": key_bias}
            return cast(Tensor, self.backend(q, k, values, **options))  # [B, H, N, d]

        out = attend(v) if self.values is None else self.values(attend, v, tokens=x, queries=queries, layout=layout)
        out = self.norm(out.transpose(1, 2).flatten(2))
        gate = getattr(self, "gate", None)
        return cast(Tensor, self.proj_drop(self.proj(out if gate is None else out * gate(x).sigmoid())))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values with timm's norms: [B, N, D] -> [B, H, N, d] each."""
        if getattr(self, "qkv", None) is not None:
            qkv = self.qkv(x)
            if getattr(self, "q_bias", None) is not None:
                qkv = qkv + torch.cat([self.q_bias, self.k_bias, self.v_bias])
            parts = [each.unflatten(-1, (self.num_heads, -1)) for each in qkv.chunk(3, dim=-1)]
        else:
            width = self.q_proj.out_features // self.num_heads
            parts = [each(x).unflatten(-1, (-1, width)) for each in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = (each.transpose(1, 2) for each in parts)
        groups = self.num_heads // k.shape[1]  # query heads that share keys and values
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self.q_norm(q), self.k_norm(k), v

    def rotated(self, x: Tensor, rope: Tensor) -> Tensor:
        """Return queries or keys [B, H, N, d] rotated by the angles of timm's model, prefix tokens as they are."""
        assert self.apply_rope is not None
        prefix, patches = x[:, :, : self.rope_prefix], x[:, :, self.rope_prefix :]
        if self.kept is not None:
            halves = rope.chunk(2, dim=-1)  # sines and cosines of each dimension, [.., 1 or H, N, d] or [N, d]
            shape = (*halves[0].shape[:-3], self.num_heads, *halves[0].shape[-2:])
            index = self.kept[:, None].expand(*shape[:-1], -1)
            rope = torch.cat([half.expand(shape).gather(-1, index) for half in halves], dim=-1)
        return torch.cat([prefix, self.apply_rope(patches, rope, half=self.rotate_half)], dim=2)
