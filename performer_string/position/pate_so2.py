"""Parallel transport with rotations of planes, along the raster or along the axes, with an optional metric."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from performer_string.position.base import Sizes
from performer_string.position.conformal import Form, Layout, MetricByPosition, ScaledRotation, Scaling
from performer_string.position.frequencies import axial_frequencies, num_planes, plane_generators
from performer_string.position.pate import PaTE
from performer_string.position.rotation import MetricRotation, Rotation
from performer_string.utils.dtype import full_precision, without_autocast
from performer_string.utils.registry import choose

Metric = Literal["none", "constant", "by-position"]


class PaTESO2(PaTE):
    """RiemannFormer's SO(2): planes rotate by omega_p i with the raster index i, or with one axis each.

    Both layouts are separable. The raster index is linear in the coordinates, hence Omega = omega (W, 1) for a training
    grid of width W. On a wider grid the end of a row has the index of the beginning of the next: choose `axes` for
    larger images. Source: Ji, RiemannFormer, arXiv:2506.07405.

    Args:
        sizes: sizes of the attention that the encoding serves.
        layout: coordinates that set the angles: `raster` for the raster index, or `axes` for one axis in each plane.
            The paper's table 1 may have either: section 3 has "1D PaTE-SO(2)", and processes both axes separately. The
            default is `raster` where the training grid is known or positions have one
            dimension, and `axes` otherwise.
        learn_angles: whether omega is learned, for each head.
        base: base of the initial omega_p = base^(-p / P); with `axes` P is the number of planes of an axis.
        metric: learned 2 x 2 metric of each plane (the paper's appendix), or False. True or `constant` is one M = L L^T
            for all positions, which the rotations preserve. It starts as the Euclidean one. W_Q and W_K can absorb L^T,
            so that it adds no functions to exact attention. `by-position` is M_i = U diag(lambda_1^(2 i / tau),
            lambda_2^(2 i / tau)) U^T with T_i = Rot_i M_i^(1/2), hence T_i^T T_i = M_i. The angle of U and both lambda
            are learned. It starts as conformal scaling, the case of equal lambda, and takes its options. The copy of
            the paper used here lacks the appendix's formulas. This form is derived from its text and section 2.2.
        conformal_scaling, slow_down, scaling, share_lambda, lambda_form, lambda_start: see `Scaling` in `conformal.py`.
        share_heads: whether the heads of a layer share one set of parameters.

    Raises:
        ValueError: as `PaTE` raises, an unknown layout or metric, or a metric by position without conformal scaling.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        layout: Layout | None = None,
        learn_angles: bool = True,
        base: float = 10000.0,
        metric: bool | str = False,
        conformal_scaling: float = 0.0,
        slow_down: float = 64.0,
        scaling: Layout = "raster",
        share_lambda: bool = False,
        lambda_form: Form = "bounded",
        lambda_start: float | None = None,
        share_heads: bool = False,
    ):
        if layout is None:
            # Models know the training grid, and configurations without a layout have always meant the raster.
            layout = "raster" if sizes.grid is not None or sizes.coord_dim == 1 else "axes"
        name = metric if isinstance(metric, str) else "constant" if metric else "none"
        kind = choose("metric of pate-so2", name, Metric)
        by_position = kind == "by-position"
        if by_position and not conformal_scaling:
            raise ValueError("pate-so2: metric='by-position' needs conformal_scaling, the bound of |log lambda|.")
        conformal = Scaling(conformal_scaling, slow_down, scaling, share_lambda, lambda_form, lambda_start)
        super().__init__(sizes, share_heads, conformal, 2, layout, sizes.head_dim if by_position else None)
        planes = num_planes(sizes.head_dim, self.name)
        omega = axial_frequencies(planes, 1 if self.raster else sizes.coord_dim, base)
        self.omega = nn.Parameter(omega.repeat(self.parameter_heads, 1, 1), requires_grad=learn_angles)
        # log L_11, L_21 and log L_22 of each plane
        self.root = nn.Parameter(torch.zeros(self.parameter_heads, planes, 3)) if kind == "constant" else None
        self.angle = nn.Parameter(torch.zeros(self.parameter_heads, planes)) if by_position else None  # of U
        if kind == "constant":
            self.rotation_class = MetricRotation

    def basis(self) -> Tensor | None:
        """Return L, lower triangular in each plane, or U, [parameter_heads, d, d]; None without a metric."""
        if self.angle is not None:
            angle = full_precision(self.angle)
            cos, sin = angle.cos(), angle.sin()
            rotation = torch.diag_embed(torch.cat([cos, cos], dim=-1)) + torch.diag_embed(sin, offset=-sin.shape[-1])
            return rotation - torch.diag_embed(sin, offset=sin.shape[-1])
        if self.root is None:
            return None
        first, below, second = full_precision(self.root).unbind(-1)  # [H, P]
        diagonal = torch.diag_embed(torch.cat([first.exp(), second.exp()], dim=-1))  # [H, 2 P, 2 P]
        return diagonal + torch.diag_embed(below, offset=-below.shape[-1])  # row p + P, column p

    def exponents(self, positions: Tensor, w: Tensor) -> Tensor:
        """Return the exponents of `PaTE`, or under a metric by position those of each eigenvalue, [..., H, N, d]."""
        if self.angle is None:
            return super().exponents(positions, w)
        return super().exponents(positions, w.flatten(0, 1)).unflatten(-2, (-1, self.head_dim)).mT

    def scaled(self, rotation: Rotation, exponents: Tensor) -> Rotation:
        """Return a rotation with a scale for each token or, under a metric by position, for each eigenvalue."""
        kind = ScaledRotation if self.angle is None else MetricByPosition
        return kind(rotation, exponents.exp())

    def frequencies(self) -> Tensor:
        """Return Omega, [parameter_heads, C, P], in radians per patch; in float32 or better where strides multiply."""
        return self.along_raster(self.omega) if self.raster else self.omega

    def generators(self) -> Tensor:
        """Return the plane generators G_k, or L^-T G_k L^T under a constant metric, [layers H, C, d, d]."""
        generators = plane_generators(self.omega, self.head_dim)  # [H, C or 1, d, d]
        if self.raster:
            generators = generators * self.strides.to(generators)[:, None, None]
        generators = self.all_heads(generators)
        if self.root is None:  # U commutes with the rotations of its planes
            return generators
        first, below, second = self.root.unbind(-1)  # [H, P]
        p, planes = torch.arange(first.shape[-1], device=first.device), first.shape[-1]
        root = generators.new_zeros(len(first), self.head_dim, self.head_dim)
        root[:, p, p], root[:, p + planes, p + planes] = first.exp().to(root), second.exp().to(root)
        root[:, p + planes, p] = below.to(root)
        root = self.all_heads(root)[:, None]
        with without_autocast(generators):
            return torch.linalg.solve_triangular(root.mT, generators @ root.mT, upper=True).contiguous()
