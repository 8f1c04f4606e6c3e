"""The contract of every position encoding, and the form that all separable ones share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from performer_string.position.rotation import PlaneRotation, Rotation
from performer_string.utils._compat import values_unavailable
from performer_string.utils.buffers import ComputedBuffers


@dataclass(frozen=True)
class Sizes:
    """What every encoding is built for.

    Attributes:
        head_dim: width d of a head.
        num_heads: H.
        coord_dim: dimension C of the positions.
        grid: cells of the training grid along each axis, for encodings that depend on it.
        layers: how many layers are served, each with heads of its own.
    """

    head_dim: int
    num_heads: int
    coord_dim: int = 2
    grid: tuple[int, ...] | None = None
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("head_dim", "num_heads", "coord_dim", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be positive, not {getattr(self, name)}.")
        if self.grid is not None and len(self.grid) != self.coord_dim:
            raise ValueError(f"the training grid {self.grid} does not have coord_dim={self.coord_dim} axes.")

    def parameter_heads(self, share_heads: bool) -> int:
        """How many heads, of all layers, have parameters of their own."""
        return self.layers * (1 if share_heads else self.num_heads)


class HeadWidthError(ValueError):
    """A head of a width that an encoding cannot turn."""


def block_of(family: str, head_dim: int, block_size: int | None, least: int) -> int:
    """The block size, by default the whole width; an error that lists those that fit unless it divides the width."""
    b = head_dim if block_size is None else block_size
    if not least <= b <= head_dim or head_dim % b:
        fits = [n for n in range(least, head_dim + 1) if head_dim % n == 0]
        raise HeadWidthError(
            f"{family}: block_size has to divide the head width {head_dim} and lie between {least} and it, not {b}. "
            f"Possible: {', '.join(map(str, fits)) or 'none; use a wider head'}."
        )
    return b


class Encoding(ComputedBuffers):
    """Sends positions [..., N, C] to the rotation of each head's queries and keys.

    One encoding can serve several layers with generators of their own: its heads are then those of all layers, in
    order, computed at once, and `by_layer` gives each layer its part.
    """

    additive = False  # adds to the tokens at the entry of the model; one instance serves all layers
    extrapolates = True  # has a meaning outside the training grid; otherwise positions are squeezed into it

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_dim, self.num_heads = sizes.head_dim, sizes.num_heads
        self.coord_dim, self.grid, self.layers = sizes.coord_dim, sizes.grid, sizes.layers

    def check(self, positions: Tensor) -> Tensor:
        if positions.ndim < 2 or positions.shape[-1] != self.coord_dim:
            raise ValueError(
                f"{type(self).__name__} was built for positions [..., N, {self.coord_dim}] (coord_dim="
                f"{self.coord_dim}), but was given {list(positions.shape)}. Build it with another coord_dim, or pass "
                f"positions with one column an axis."
            )
        if positions.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"positions in {positions.dtype} are rounded, to whole patches or worse: keep them in float32, in no "
                f"buffer that .bfloat16() or .half() reaches."
            )
        if values_unavailable():
            return positions
        # On other devices than the CPU looking at a value makes the program wait: only where that costs little.
        if positions.device.type == "cpu" or not self.training:
            self.check_finite()
        return positions

    def check_finite(self) -> None:
        """An error that names the first entry of a parameter that is not a finite number."""
        for name, parameter in self.named_parameters():
            if not torch.isfinite(parameter).all():
                place = (~torch.isfinite(parameter)).nonzero()[0].tolist()
                raise ValueError(
                    f"{type(self).__name__}: the generators have to be finite numbers, but {name}{place} is "
                    f"{parameter[tuple(place)].item()}. Weights that went bad in training? Load an earlier checkpoint, "
                    f"and train with a lower learning rate or with gradient clipping."
                )

    def forward(self, positions: Tensor) -> Rotation:
        """The rotation at `positions` [..., N, C]; the identity unless the encoding says otherwise: an additive one is
        all in `embedding`."""
        dtype = torch.promote_types(positions.dtype, torch.float32)
        none = self.check(positions).new_zeros(*positions.shape[:-2], 1, positions.shape[-2], 0, dtype=dtype)
        return PlaneRotation(none, none, self.head_dim)

    def by_layer(self, positions: Tensor) -> list[Rotation]:
        """The rotation of each of the layers served."""
        rotation = self(positions)
        return [rotation] if self.layers == 1 else rotation.split(self.layers)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """What is added to the tokens at the entry of the model, [..., N, H d], or None."""
        return None

    def generators(self) -> Tensor:
        """L_k with R(r) = exp(sum_k r_k L_k), [layers H, C, d, d], by their definition and not by B and Omega."""
        if not self.additive:
            raise NotImplementedError(f"{type(self).__name__} turns queries and keys, but has no generators().")
        return torch.zeros(self.layers * self.num_heads, self.coord_dim, self.head_dim, self.head_dim)

    def all_heads(self, x: Tensor) -> Tensor:
        """[own heads, ...] -> [layers H, ...]."""
        return x.repeat_interleave(self.layers * self.num_heads // len(x), dim=0)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, coord_dim={self.coord_dim}"


class SeparableEncoding(Encoding):
    """R(r) = B Rot(Omega r) B^T, the form of every STRING encoding (arXiv:2502.02562, Theorem 3.4).

    A family gives its plane frequencies Omega and, where it has one, its basis B, for the heads of all layers served:
    `parameter_heads` of them, layers x H, or one a layer with `share_heads`; or 1 for all. `all_heads` repeats a layer's.
    """

    share_heads: bool
    is_folded = False  # the basis is in the projections already, and the rotation comes without it
    rotation = PlaneRotation

    def __init__(self, sizes: Sizes, *, share_heads: bool = False):
        super().__init__(sizes)
        self.share_heads = share_heads
        self.parameter_heads = sizes.parameter_heads(share_heads)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.is_folded:
            destination[prefix + "folded"] = torch.tensor(True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        folded = bool(state_dict.pop(prefix + "folded", False))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if folded != self.is_folded:
            kinds = {True: "folded (performer_string.fold)", False: "not folded"}
            rest[-1].append(
                f"the weights are of a model that is {kinds[folded]}, and this one is {kinds[self.is_folded]}"
            )

    def frequencies(self) -> Tensor:
        """Omega, [1, parameter_heads or layers H, C, P] with P <= d / 2 planes, in radians for each patch."""
        raise NotImplementedError

    def basis(self) -> Tensor | None:
        """B, orthogonal, [1 or parameter_heads, d, d]; None for the identity."""
        return None

    def check_shape(self, method: str, x: Tensor, fits: bool, rest: str) -> None:
        """An error unless x is [heads, *rest], with the own heads or those of all layers; `fits` says of the rest."""
        heads = (1, self.parameter_heads, self.layers * self.num_heads)
        if not fits or x.shape[0] not in heads:
            raise ValueError(
                f"{type(self).__name__}.{method}() has to be [{' or '.join(map(str, dict.fromkeys(heads)))}, {rest}] "
                f"for {self.layers} layers of {self.num_heads} heads of width {self.head_dim}, not {list(x.shape)}."
            )

    def forward(self, positions: Tensor) -> Rotation:
        self.check(positions)
        with torch.autocast(positions.device.type, enabled=False):
            omega, basis = self.frequencies(), None if self.is_folded else self.basis()
        planes, d = self.head_dim // 2, self.head_dim
        fits = omega.ndim == 3 and omega.shape[1] == self.coord_dim and omega.shape[2] <= planes
        self.check_shape("frequencies", omega, fits, f"{self.coord_dim}, at most {planes}")
        if basis is not None:
            self.check_shape("basis", basis, basis.ndim == 3 and basis.shape[1:] == (d, d), f"{d}, {d}")
        dtype = torch.promote_types(torch.promote_types(positions.dtype, omega.dtype), torch.float32)
        r = positions.to(dtype)[..., None, :, :, None]  # [..., 1, N, C, 1]
        omega = omega.to(dtype)[:, None]  # [H, 1, C, P]
        # A sum of products and not a matrix product: autocast would take that one to bf16, where 23 patches are
        # off by a quarter of a radian at unit frequency.
        angles = sum(
            (r[..., c, :] * omega[..., c, :] for c in range(1, self.coord_dim)), r[..., 0, :] * omega[..., 0, :]
        )
        return self.rotation(angles.cos(), angles.sin(), self.head_dim, basis)  # angles [..., H, N, P]
