"""RiemannFormer's conformal exponential scaling, and the rotations that it scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from performer_string.position.rotation import Rotation, one_sample, split_heads
from performer_string.utils.dtype import without_autocast
from performer_string.utils.registry import choose
from performer_string.utils.validation import check_not_negative, check_positive

Layout = Literal["raster", "axes"]
Form = Literal["bounded", "decay"]


@dataclass(frozen=True)
class Scaling:
    """Options of conformal scaling: a factor s = lambda^(i / tau) of each token, with lambda learned.

    Attributes:
        bound: option `conformal_scaling`: bound kappa of |log lambda|; 0 for no scaling, which excludes the others.
        slow_down: option of this name: divisor tau of the exponent, in tokens; in patches with `axes`.
        layout: option `scaling`, the exponent i: `raster` for the raster index, or `axes` for the coordinates, with a
            lambda for each axis.
        shared: option `share_lambda`: whether all heads of all layers share one lambda, as in the source, section 2.2.
        form: option `lambda_form`: `bounded` for exp(kappa tanh(w)), or `decay` for sigmoid(w)^kappa in (0, 1).
        start: option `lambda_start`: initial lambda; None for that of w = -0.5.
    """

    bound: float
    slow_down: float
    layout: Layout
    shared: bool
    form: Form
    start: float | None

    def check(self, name: str) -> None:
        """Raise a ValueError for values out of range, with the name of the encoding."""
        choose("scaling of pate", self.layout, Layout)
        choose("lambda_form of pate", self.form, Form)
        check_not_negative(f"{name}: conformal_scaling", self.bound)
        check_positive(f"{name}: slow_down", self.slow_down)
        if self.start is not None and self.bound:
            bounds = {"bounded": (math.exp(-self.bound), math.exp(self.bound)), "decay": (0.0, 1.0)}
            low, high = bounds[self.form]
            if not low < self.start < high:
                raise ValueError(f"{name}: lambda_start must lie between {low:.4g} and {high:.4g}, not {self.start}.")

    def first_weight(self) -> float:
        """Return the initial w."""
        if self.start is None:
            return -0.5
        if self.form == "bounded":
            return math.atanh(math.log(self.start) / self.bound)
        log_share = math.log(self.start) / self.bound  # log sigmoid(w)
        return log_share - math.log(-math.expm1(log_share))

    def log_lambda(self, w: Tensor) -> Tensor:
        """Return log lambda of the parameters w: bound tanh(w), or bound log sigmoid(w)."""
        return self.bound * (w.tanh() if self.form == "bounded" else F.logsigmoid(w))


class ScaledRotation(Rotation):
    """Rotation with a scale for each token, T = s R. Scores depend on absolute positions by design.

    Args:
        rotation: rotation R.
        scale: scale s of each token, [..., 1 or H, N].
    """

    scale_dims = 2  # axes of the scale of one sample

    def __init__(self, rotation: Rotation, scale: Tensor):
        self.rotation, self.scale = rotation, scale

    def check(self, x: Tensor) -> None:
        self.rotation.check(x)

    def rotate(self, x: Tensor) -> Tensor:
        """Return s R x for x [B, H, N, d], up to an orthogonal factor on the left."""
        return (self.rotation.rotate(x) * self.scale[..., None]).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return s^-1 R^-1 x for x [B, H, N, d], the inverse of `rotate`."""
        return self.rotation.unrotate((x / self.scale[..., None]).to(x.dtype))

    def outer(self, x: Tensor) -> Tensor:
        return self.rotation.outer(x)

    def matrix(self) -> Tensor:
        """Return s R, [..., H, N, d, d]."""
        return self.rotation.matrix() * self.scale[..., None, None]

    def factor(self) -> tuple[Tensor | None, Rotation]:
        basis, rest = self.rotation.factor()
        return basis, type(self)(rest, self.scale)

    def split(self, count: int) -> Sequence[Rotation]:
        parts = zip(self.rotation.split(count), split_heads(self.scale, count, -self.scale_dims), strict=True)
        return [type(self)(rotation, scale) for rotation, scale in parts]

    def of_sample(self, index: int) -> Rotation:
        return type(self)(self.rotation.of_sample(index), one_sample(self.scale, index, self.scale_dims))


class MetricByPosition(ScaledRotation):
    """Rotation under a metric M_i that depends on the position, T_i = Rot_i M_i^(1/2) with M_i = U D_i^2 U^T.

    Args:
        rotation: rotation U Rot U^T, with U orthogonal in each plane, which commutes with Rot.
        scale: diagonal of D, [..., 1 or H, N, d].
    """

    scale_dims = 3

    def rotate(self, x: Tensor) -> Tensor:
        """Return Rot D U^T x for x [B, H, N, d]."""
        (basis, rest), dtype = self.rotation.factor(), torch.promote_types(x.dtype, self.scale.dtype)
        y = x.to(dtype)
        if basis is not None:
            with without_autocast(x):
                y = y @ basis.to(dtype)
        return rest.rotate(y * self.scale).to(x.dtype)

    def unrotate(self, x: Tensor) -> Tensor:
        """Return U D^-1 Rot^-1 x for x [B, H, N, d], the inverse of `rotate`."""
        _, rest = self.rotation.factor()
        y = rest.unrotate(x.to(torch.promote_types(x.dtype, self.scale.dtype))) / self.scale
        return self.rotation.outer(y).to(x.dtype)

    def matrix(self) -> Tensor:
        """Return U Rot D U^T, [..., H, N, d, d]."""
        basis, rest = self.rotation.factor()
        matrix = rest.matrix() * self.scale[..., None, :]
        if basis is None:
            return matrix
        basis = basis.to(matrix.dtype)[:, None]  # [H, 1, d, d]
        with without_autocast(matrix):
            return basis @ matrix @ basis.mT
