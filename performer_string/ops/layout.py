"""Layout of the tokens of a sequence (positions, regular grid, prefix tokens and mask), and the context of attention.

A grid of C <= 3 axes is written as (n_0, n_1, n_2) with ones at the end, so that one loop serves every dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from performer_string.utils.dtype import angle_dtype

if TYPE_CHECKING:
    from performer_string.bias import RelativeBias
    from performer_string.position.rotation import Rotation

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Grid:
    """A row-major grid of tokens.

    Attributes:
        shape: numbers of tokens along three axes, 1 where the grid has fewer dimensions.
        steps: distance of neighbours along each axis, in patches; 1 along an axis of one token.
        dim: number C of coordinates of a position.
    """

    shape: Triple
    steps: tuple[float, float, float]
    dim: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.shape[0] * self.shape[1] * self.shape[2]


def make_grid(shape: Sequence[int], steps: Sequence[float]) -> Grid | None:
    """Return the grid of this shape, or None for more than three axes.

    Args:
        shape: number of tokens along each axis.
        steps: distance of neighbours along each axis, in patches; 1 along an axis of one token.
    """
    if not 1 <= len(shape) <= 3:
        return None
    n0, n1, n2 = (*shape, 1, 1)[:3]
    s0, s1, s2 = (*steps, 1.0, 1.0)[:3]
    return Grid((n0, n1, n2), (s0, s1, s2), len(shape))


def find_grid(positions: Tensor) -> Grid | None:
    """Return the regular row-major grid that positions form, or None where they form none.

    Spacing and origin are free. A coordinate may be off by a thousandth of a step, or by its rounding on a long axis.

    Args:
        positions: positions of the tokens, [N, C].
    """
    positions = positions.detach()
    positions = positions if positions.is_floating_point() else positions.to(angle_dtype(positions))
    tokens, dim = positions.shape
    if tokens == 0 or not 1 <= dim <= 3 or not bool(positions.isfinite().all()):
        return None
    shape, steps, left = [], [], tokens
    for c in range(dim):  # axis c is constant over the first `inner` tokens, and then takes its next value
        axis = positions[:, c]
        jumps = axis[1:left] - axis[: left - 1]
        step = float(jumps.max()) if left > 1 else 0.0
        if step <= 0:
            shape.append(1)
            steps.append(1.0)
            continue
        moved = (jumps > step / 2).nonzero()
        inner = int(moved[0]) + 1
        if left % inner:
            return None
        shape.append(left // inner)
        steps.append(float(axis[left - 1] - axis[0]) / (left // inner - 1))
        left = inner
    if left != 1 or min(steps) <= 0:
        return None
    for c, (n, step) in enumerate(zip(shape, steps, strict=True)):
        index = torch.arange(n, device=positions.device, dtype=positions.dtype) * step
        view = [n if i == c else 1 for i in range(dim)]
        expected = (positions[0, c] + index).view(view).expand(shape).reshape(-1)  # [n_0, ...] -> [N]
        rounding = 4 * torch.finfo(positions.dtype).eps * positions[:, c].abs().max()
        if n > 1 and not bool(((positions[:, c] - expected).abs() <= rounding.clamp(min=1e-3 * step)).all()):
            return None
        if n == 1 and not bool((positions[:, c] == positions[0, c]).all()):
            return None
    return make_grid(shape, steps)


class TokenLayout:
    """Positions, grid, prefix and mask of the N tokens of a sequence. The arguments are its attributes.

    It is no dataclass, of which torch's `fully_shard` would cast all tensors to the type of the weights, positions too.

    Args:
        positions: positions of the tokens, [N, C], or [B, N, C] where samples differ, prefix tokens first, at zero;
            None where they are not needed.
        grid: regular grid of the tokens after the prefix, where it is known in advance.
        num_prefix: number of leading tokens without a position (class token, registers).
        mask: mask of the tokens, [B, N], True for tokens to attend to; None for all.
        centre: origin of each sample, [B, 1, C]; None for zero. Offsets between tokens do not depend on it.
        lengths: numbers of tokens of the sequences that are packed into a batch of one, each with its own prefix
            tokens; None for one sequence per sample. They are Python integers, as tuple(cu_seqlens.diff().tolist());
            `counts` copies them to a device.
        grids_of: grid of each packed sequence, where they are known in advance.
        image_grid: grid of the patches in the image, for a convolution over neighbours where positions form no regular
            grid, as randomized positions; None where it is unknown.

    Raises:
        TypeError: lengths that are a tensor.
        ValueError: a mask that is not boolean [B, N], or a mask of packed sequences, which have no padding.
    """

    def __init__(
        self,
        positions: Tensor | None = None,
        grid: Grid | None = None,
        num_prefix: int = 0,
        mask: Tensor | None = None,
        centre: Tensor | None = None,
        lengths: tuple[int, ...] | None = None,
        grids_of: tuple[Grid | None, ...] | None = None,
        image_grid: Grid | None = None,
    ):
        self.positions, self.grid, self.num_prefix, self.mask, self.centre = positions, grid, num_prefix, mask, centre
        self.lengths, self.grids_of, self.image_grid = lengths, grids_of, image_grid
        self._counts: dict[torch.device, Tensor] = {}
        if isinstance(lengths, Tensor):
            raise TypeError(
                "the lengths of a layout are Python integers, as tuple(cu_seqlens.diff().tolist()), not a Tensor."
            )
        if self.mask is None:
            return
        if self.mask.dtype != torch.bool or self.mask.ndim != 2:  # softmax would add numbers to the logits
            raise ValueError(
                f"the mask of a layout must be boolean [B, N], True for tokens to attend to, not {self.mask.dtype} "
                f"of shape {list(self.mask.shape)}."
            )
        if self.lengths is not None:
            raise ValueError("packed sequences hold no padding: leave masked tokens out, and give no mask of them.")

    def replace(self, **changes: Any) -> TokenLayout:
        """Return a layout with other values of some arguments of the constructor."""
        kept = {name: value for name, value in vars(self).items() if name != "_counts"}
        return TokenLayout(**{**kept, **changes})

    @property
    def patch_mask(self) -> Tensor | None:
        """`mask` without the prefix tokens, [B, N]."""
        return None if self.mask is None else self.mask[:, self.num_prefix :]

    def counts(self, device: torch.device) -> Tensor:
        """Return `lengths` as a tensor, int64 [sequences], which is copied to the device once for all layers."""
        if device not in self._counts:
            self._counts[device] = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        return self._counts[device]

    def check_lengths(self, batch: int, tokens: int) -> None:
        """Raise a ValueError unless `lengths` are those of all tokens of a batch of one, or None."""
        if self.lengths is not None and (batch != 1 or sum(self.lengths) != tokens):
            raise ValueError(
                f"packed sequences are one batch with the tokens of all, here {sum(self.lengths)} by their lengths "
                f"{self.lengths}, not a batch of {batch} with {tokens} tokens each."
            )

    def parts(self) -> list[TokenLayout]:
        """Return the layout of each packed sequence."""
        assert self.lengths is not None
        positions = [None] * len(self.lengths) if self.positions is None else self.positions.split(list(self.lengths))
        grids = self.grids_of or (None,) * len(self.lengths)
        return [TokenLayout(x, grid, self.num_prefix) for x, grid in zip(positions, grids, strict=True)]

    def centred_positions(self) -> Tensor:
        """Return the positions relative to each sample's centre, prefix tokens at zero: [N, C] or [B, N, C]."""
        assert self.positions is not None
        if self.centre is None:
            return self.positions
        positions = self.positions - self.centre
        prefix = torch.zeros_like(positions[..., : self.num_prefix, :])
        return torch.cat([prefix, positions[..., self.num_prefix :, :]], dim=-2)

    def grids(self) -> list[Grid | None]:
        """Return the grid of the tokens after the prefix: one for all samples, or one for each."""
        if self.grid is not None:
            return [self.grid]
        assert self.positions is not None
        positions = self.positions[..., self.num_prefix :, :]
        return [find_grid(sample) for sample in (positions if positions.ndim == 3 else [positions])]


@dataclass(frozen=True)
class AttentionContext:
    """Inputs of attention besides queries, keys and values.

    Attributes:
        rotation: rotation of queries and keys; None for the identity.
        locality: relative bias, which attenuates values by distance; it needs the positions in `layout`.
        layout: layout of the tokens: positions, prefix, and the mask of those that take part, or lengths of packed
            sequences.
        key_bias: bias of the logits of each key, [B, H, N].
    """

    rotation: Rotation | None
    locality: RelativeBias | None
    layout: TokenLayout  # without a default, which torch 2.11 cannot compile
    key_bias: Tensor | None = None


EVERY_TOKEN = TokenLayout()  # all tokens of a sequence take part, without positions
