"""Checks of the arguments of attention. Wrong shapes would broadcast, or be cut off, and give other numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from performer_string.utils._compat import values_unavailable

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.feature_maps import FeatureMap
    from performer_string.ops.layout import AttentionContext, TokenLayout
    from performer_string.position.rotation import Rotation


def check_attention(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, key_bias: Tensor | None) -> None:
    """Raise an error unless queries, keys, values, mask and bias fit together.

    Args:
        q, k, v: queries, keys and values, [B, H, N, d], [B, H, M, d], [B, H, M, e].
        key_mask: boolean mask of the keys, [B, M], or None.
        key_bias: bias of the keys, [B, H, M], or None.

    Raises:
        TypeError: integers as queries, keys or values.
        ValueError: shapes or devices that do not fit, or a bias that is a mask or of integers.
    """
    if not (q.is_floating_point() and k.is_floating_point() and v.is_floating_point()):
        raise TypeError(f"queries, keys and values must be floating-point, not {q.dtype}, {k.dtype} and {v.dtype}.")
    fit = q.ndim == k.ndim == v.ndim == 4
    if not fit or q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"queries, keys and values must be [B, H, N, d], [B, H, M, d] and [B, H, M, e], not {list(q.shape)}, "
            f"{list(k.shape)} and {list(v.shape)}; expand dimensions that all samples or heads share, or "
            f"k.repeat_interleave(n, dim=1) where n heads of queries share a head of keys."
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"queries, keys and values are on several devices: {q.device}, {k.device} and {v.device}.")
    check_mask("key", key_mask, k.shape[0], k.shape[2])
    if key_bias is not None and not (key_bias.shape == k.shape[:3] and key_bias.is_floating_point()):
        raise ValueError(
            f"key_bias must be floating-point [B, H, N] = {list(k.shape[:3])}, not {key_bias.dtype} "
            f"{list(key_bias.shape)}; a mask is key_mask."
        )
    for name, x in (("key_mask", key_mask), ("key_bias", key_bias)):
        if x is not None and x.device != k.device:
            raise ValueError(f"{name} is on {x.device}, and queries, keys and values are on {k.device}: move it there.")


def check_sequences(inputs: tuple[Tensor, Tensor, Tensor], widths: tuple[int, int, int], batch_first: bool) -> None:
    """Raise a ValueError unless queries, keys and values fit together before their projection.

    One sample would be that of all others, and softmax took other numbers of keys and values without a word.

    Args:
        inputs: queries, keys and values, [B, N, E], [B, M, kdim] and [B, M, vdim], or all without B.
        widths: E, kdim and vdim.
        batch_first: whether B comes first; it is the second axis else.
    """
    query, key, value = inputs
    batch = query.shape[:-2] if batch_first else query.shape[1:-1]
    fits = query.ndim == key.ndim and query.ndim in (2, 3) and key.shape[:-1] == value.shape[:-1]
    fits = fits and batch == (key.shape[:-2] if batch_first else key.shape[1:-1])
    if not fits or widths != tuple(x.shape[-1] for x in inputs):
        forms = [
            f"[B, {n}, {width}]" if batch_first else f"[{n}, B, {width}]"
            for n, width in zip("NMM", widths, strict=True)
        ]
        shapes = [str(list(x.shape)) for x in inputs]
        raise ValueError(
            f"query, key and value must be {', '.join(forms)}, all with B or none, not {', '.join(shapes)}."
        )


def check_context(context: AttentionContext, q: Tensor, k: Tensor) -> None:
    """Raise an error unless rotation, locality and layout fit queries and keys [B, H, N, d], and all have a use.

    Raises:
        TypeError: a rotation or a relative bias of another kind.
        ValueError: another number of heads or tokens, the rotation of an encoding that adds to the tokens, a relative
            bias without positions, or positions and prefix tokens that nothing uses.
    """
    rotation, locality, layout = context.rotation, context.locality, context.layout
    check_rotation(rotation, q, k)
    shape = list(getattr(layout.positions, "shape", ()))
    if locality is not None or len(shape) != 3:  # positions of each sample are no mistake of their shape without one
        check_layout(layout, k.shape[0], k.shape[2], each_sample=False)
    if locality is not None:
        check_locality(locality, layout.positions, q, k)
    elif len(shape) == 3 or (rotation is None and (shape or layout.num_prefix)):
        given = f"positions {shape}" if shape else f"num_prefix={layout.num_prefix}"
        raise ValueError(
            f"{given} would have no effect without a locality: pass locality=build_locality(...), for an encoding "
            f"rotation=encoding(positions), or leave out positions and num_prefix: a rotation has its own."
        )


def check_rotation(rotation: Rotation | None, q: Tensor, k: Tensor) -> None:
    """Raise an error unless a rotation fits queries and keys [B, H, N, d], or is None.

    Raises:
        TypeError: a rotation of another kind.
        ValueError: other shapes, or the rotation of an encoding that adds to the tokens.
    """
    check_rotation_kind(rotation)
    if rotation is not None:
        rotation.check(q)
        rotation.check(k)


def check_rotation_kind(rotation: Rotation | None) -> None:
    """Raise an error unless a rotation is None, or is one and rotates.

    Raises:
        TypeError: a rotation of another kind.
        ValueError: the rotation of an encoding that adds to the tokens.
    """
    if rotation is None:
        return
    if not hasattr(rotation, "rotate"):
        several = ", one for each layer: pass that of this layer" if isinstance(rotation, list) else ""
        raise TypeError(
            f"rotation must be a Rotation, as encoding(positions) returns, not a {type(rotation).__name__}{several}."
        )
    if getattr(rotation, "added", None) is not None:
        raise ValueError(
            f"{rotation.added} rotates nothing: it is added to the tokens, x + encoding.embedding(positions)."
        )


def check_mask(kind: str, mask: Tensor | None, batch: int, count: int, name: str | None = None) -> None:
    """Raise a ValueError unless a mask is None, or boolean and of shape [batch, count].

    Args:
        kind: kind of token, for the message, as "key".
        name: name of the argument; `key_mask` for "key" by default.
    """
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, count)):
        name, kinds = name or f"{kind}_mask", "patches" if kind == "patch" else f"{kind}s"
        raise ValueError(
            f"{name} must be boolean and of shape [B, N] = [{batch}, {count}], True for {kinds} to attend to, "
            f"not {mask.dtype} {list(mask.shape)}."
        )


def check_feature_map(phi: FeatureMap, q: Tensor) -> None:
    """Raise an error unless a feature map fits the heads of the queries, [B, H, N, d].

    Raises:
        TypeError: `phi` is no feature map.
        ValueError: another number of heads, or another width.
    """
    if isinstance(phi, type) or not hasattr(phi, "pair"):
        raise TypeError(f"phi must be a feature map, as build_feature_map returns, not a {type(phi).__name__}.")
    if (phi.num_heads, phi.head_dim) != (q.shape[1], q.shape[3]):
        raise ValueError(
            f"the feature map is of {phi.num_heads} heads of width {phi.head_dim}, the queries are of {q.shape[1]} of "
            f"width {q.shape[3]}: build it with num_heads={q.shape[1]}, head_dim={q.shape[3]}. Inputs are [B, H, N, "
            f"d]: transpose(1, 2) those that are [B, N, H, d]."
        )


def check_layout(layout: TokenLayout, batch: int, tokens: int, each_sample: bool = True) -> None:
    """Raise an error unless a layout is of these tokens.

    Args:
        layout: layout of the tokens.
        batch, tokens: numbers B of samples and N of tokens.
        each_sample: whether samples may have positions of their own.

    Raises:
        TypeError: something else than a layout.
        ValueError: a mask or positions of other samples or tokens, positions that are rounded or not finite, or a
            number of prefix tokens out of range.
    """
    if not hasattr(layout, "num_prefix"):
        raise TypeError(
            f"layout must be a TokenLayout, as TokenLayout(positions, mask=mask), not a {type(layout).__name__}."
        )
    if layout.mask is not None:
        check_mask("token", layout.mask, batch, tokens, "the mask of the layout")
    if not 0 <= layout.num_prefix <= tokens:
        raise ValueError(f"num_prefix must lie between 0 and the number of tokens, {tokens}, not {layout.num_prefix}.")
    if layout.positions is None:
        return
    check_positions(layout.positions, finite=layout.grid is None)
    shape, one = layout.positions.shape, layout.lengths is not None or not each_sample
    if len(shape) not in ((2,) if one else (2, 3)) or shape[-2] != tokens or shape[:-2] not in ((), (1,), (batch,)):
        form = "[N, C], alike for all samples" if one else f"[N, C] or [B, N, C] with B = {batch}"
        packed = " Samples with positions of their own can be packed, by cu_seqlens." if not each_sample else ""
        raise ValueError(
            f"positions must be those of all {tokens} tokens, {form}, not {list(shape)}, those of prefix tokens "
            f"included.{packed}"
        )


def check_positions(positions: Tensor, finite: bool = True) -> None:
    """Raise an error for positions that are no tensor or in 16 bits, and on a CPU for any that are not finite.

    On other devices the program would wait for the numbers. NaN there goes through to the outputs.

    Args:
        positions: positions of the tokens, [..., N, C].
        finite: whether to look at the numbers; not needed for those of a known grid.

    Raises:
        TypeError: positions that are no tensor.
        ValueError: positions in 16 bits, or not finite.
    """
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a tensor [..., N, C], as of grid_positions, not {type(positions)}.")
    if positions.dtype in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"positions in {positions.dtype} are rounded, to whole patches or worse: keep them in float32, in no "
            f"parameter or buffer that .bfloat16() or .half() reaches. For fully_shard pass "
            f"MixedPrecisionPolicy(..., cast_forward_inputs=False) where a module takes positions."
        )
    readable = finite and positions.device.type == "cpu" and not values_unavailable()
    if readable and not positions.isfinite().all():
        index = (~positions.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"positions must be finite, but positions{index} is {positions[tuple(index)].item()}.")


def check_locality(locality: RelativeBias, positions: Tensor | None, q: Tensor, k: Tensor) -> None:
    """Raise an error unless a relative bias fits the heads and tokens of queries and keys [B, H, N, d], with positions.

    Raises:
        TypeError: `locality` is no relative bias.
        ValueError: another number of heads or tokens, or no positions.
    """
    if not hasattr(locality, "of_offsets"):
        raise TypeError(f"a locality is what build_locality gives, not a {type(locality).__name__}.")
    if locality.num_heads != q.shape[1]:
        raise ValueError(
            f"the locality has {locality.num_heads} heads, the queries have {q.shape[1]}: build it with "
            f"num_heads={q.shape[1]}."
        )
    tokens = k.shape[-2]
    if q.shape[-2] != tokens:
        raise ValueError(
            f"a locality needs queries and keys of the same tokens, not {q.shape[-2]} queries of {tokens} keys."
        )
    if positions is None:
        raise ValueError(f"a locality needs the positions of all {tokens} tokens, [N, C]; none are given.")
