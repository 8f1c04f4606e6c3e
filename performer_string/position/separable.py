"""The form that all separable encodings share: rotation planes in an orthogonal basis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from performer_string.position.base import Encoding, Sizes
from performer_string.position.rotation import PlaneRotation, Rotation
from performer_string.utils.dtype import angle_dtype, without_autocast


class SeparableEncoding(Encoding):
    """Encoding of the form R(r) = B Rot(Omega r) B^T.

    Every STRING encoding has this form (arXiv:2502.02562, Theorem 3.4). A family overrides `frequencies` and, where its
    basis is not the identity, `basis`. Both are for the heads of all layers served.

    Args:
        sizes: sizes of the attention that the encoding serves.
        share_heads: whether the heads of a layer share one set of parameters.

    Attributes:
        parameter_heads: number of heads with parameters, over all layers.
        is_folded: whether the projections of queries and keys contain the basis, so that rotations come without it.
        rotation_class: class of the rotations that `forward` returns.
    """

    share_heads: bool
    is_folded = False
    rotation_class = PlaneRotation

    def __init__(self, sizes: Sizes, *, share_heads: bool = False):
        super().__init__(sizes)
        self.share_heads = share_heads
        self.parameter_heads = sizes.parameter_heads(share_heads)

    def mark_folded(self, like: Tensor) -> None:
        """Mark the encoding as folded, in an attribute and in a buffer of the state dict.

        Args:
            like: projection that contains the basis; the buffer is on its device.
        """
        self.is_folded = True
        self.register_buffer("folded", torch.ones((), dtype=torch.bool, device=like.device))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        folded = prefix + "folded" in state_dict
        if not self.is_folded:
            state_dict.pop(prefix + "folded", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        ours = any(key.startswith(prefix) or key.endswith("qkv.weight") for key in state_dict)  # else of other parts
        if ours and folded != self.is_folded:
            kinds = {True: "folded (performer_string.fold)", False: "not folded"}
            rest[-1].append(
                f"the weights are of a model that is {kinds[folded]}, and this one is {kinds[self.is_folded]}"
            )

    def frequencies(self) -> Tensor:
        """Return the plane frequencies Omega in radians per patch.

        Returns:
            Frequencies, [heads, C, P], where the number of heads is 1, parameter_heads or layers H, and P <= d / 2.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no frequencies, needed here: docs/guides/own-encoding.md says what one gives."
        )

    def basis(self) -> Tensor | None:
        """Return the orthogonal basis B, or None for the identity.

        Returns:
            Basis, [heads, d, d], where the number of heads is 1, parameter_heads or layers H.
        """
        return None

    def check_shape(self, method: str, x: Tensor, fits: bool, shape: str) -> None:
        """Raise a ValueError unless what a method returned has a possible number of heads, and other axes that fit.

        Args:
            fits: whether the axes after the heads are right.
            shape: the right axes after the heads, for the message.
        """
        heads = (1, self.parameter_heads, self.layers * self.num_heads)
        if not fits or x.shape[0] not in heads:
            raise ValueError(
                f"{type(self).__name__}.{method}() must be [{' or '.join(map(str, dict.fromkeys(heads)))}, {shape}] "
                f"for {self.layers} layers of {self.num_heads} heads of width {self.head_dim}, not {list(x.shape)}."
            )

    def forward(self, positions: Tensor) -> Rotation:
        """Return the rotation at positions.

        Args:
            positions: positions of the tokens, [..., N, C], in patches of the training grid; integers or floating-point
                numbers.

        Returns:
            The rotation. Angles theta = Omega r are in float64, their cosines and sines in float32 or better.

        Raises:
            ValueError: positions that do not fit, frequencies or a basis of another shape, or a basis in 16 bits.
        """
        self.check(positions)
        with without_autocast(positions):
            omega, basis = self.frequencies(), None if self.is_folded else self.basis()
        planes, d = self.head_dim // 2, self.head_dim
        fits = omega.ndim == 3 and omega.shape[1] == self.coord_dim and omega.shape[2] <= planes
        self.check_shape("frequencies", omega, fits, f"{self.coord_dim}, at most {planes}")
        if basis is not None:
            self.check_shape("basis", basis, basis.ndim == 3 and basis.shape[1:] == (d, d), f"{d}, {d}")
            if basis.dtype in (torch.bfloat16, torch.float16):
                raise ValueError(
                    f"{type(self).__name__}.basis() is in {basis.dtype}, in which it is not orthogonal: compute it "
                    f"from full_precision(parameter) of performer_string.utils.dtype."
                )
        dtype = torch.promote_types(torch.promote_types(positions.dtype, omega.dtype), torch.float32)
        exact = torch.promote_types(dtype, angle_dtype(positions))
        r = positions.to(exact)[..., None, :, :, None]  # [..., 1, N, C, 1]
        omega = omega.to(exact)[:, None]  # [H, 1, C, P]
        # A sum of products and not a matrix product: on MPS and in exports angles are float32, and autocast would take
        # a product of these to bf16, with errors of a quarter of a radian.
        angles = sum(
            (r[..., c, :] * omega[..., c, :] for c in range(1, self.coord_dim)), r[..., 0, :] * omega[..., 0, :]
        )
        cos, sin = (self.tell_layers_apart(x.to(dtype), -3) for x in (angles.cos(), angles.sin()))  # [..., H, N, P]
        basis = None if basis is None else self.tell_layers_apart(basis, 0)
        return self.rotation_class(cos, sin, self.head_dim, basis)
