"""Which encodings are the same function class under exact attention?

W_Q and W_K are free, so that a basis is no restriction: a separable encoding can do what its frequencies can do.
Encoding B covers A if some setting of B, in some orthogonal basis G, has the scores of A at every displacement. For
each pair this fits the parameters of B to the plane frequencies of a random A and puts B in the best basis. It then
measures |R_A(r) - G R_B(r) G^T| / |R_A(r)| over random displacements r. Zero means that B covers A. More than zero
means that this search has no better fit. It pairs planes one to one, and takes the best of four starts.

Columns: `target` (A), `fitted` (B), `error` (of the best fit), `covers` (whether the error is zero but for rounding).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from eval.encodings.reports import REDUNDANCY, SAME
from eval.evaluations import Evaluation
from eval.report import Row
from eval.speed.measure import relative_error
from performer_string import build_encoding
from performer_string.position import SeparableEncoding
from performer_string.position.skew import cayley
from train.utils.progress import progress

STARTS = 4
ROUNDS = 12  # number of fits from each start
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "rope": ("rope", {}),
    "rope-mixed": ("rope-mixed", {}),
    "cayley-string": ("cayley-string", {"init_std": 0.5}),
    "cayley-string, block-diagonal": ("cayley-string", {"generator": "block-diagonal", "init_std": 0.5}),
    "cayley-string, axial, fixed": ("cayley-string", {"frequencies": "axial", "learn_frequencies": False}),
    "circulant-string": ("circulant-string", {}),
    "circulant-string, block 4": ("circulant-string", {"block_size": 4}),
    "reflection-string": ("reflection-string", {}),
    "pate-so2, raster": ("pate-so2", {}),
    "pate-so2, axes": ("pate-so2", {"layout": "axes"}),
    "pate-so3": ("pate-so3", {}),
    "pate-so4": ("pate-so4", {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval redundancy`."""
    parser.add_argument("--head-dim", type=int, default=12, help="width of a head, divisible by 12")
    parser.add_argument("--seed", type=int, default=0)


def build_family(family: str, head_dim: int) -> SeparableEncoding:
    """Build an encoding of `FAMILIES` in float64, with one head, on two axes."""
    name, options = FAMILIES[family]
    encoding = build_encoding(name, head_dim=head_dim, num_heads=1, coord_dim=2, grid=(6, 6), **options)
    return cast(SeparableEncoding, encoding.double())


def padded(omega: Tensor, planes: int) -> Tensor:
    """Return frequencies [1, C, P] padded to [C, planes]: unrotated dimensions are planes of frequency 0."""
    return torch.nn.functional.pad(omega[0], (0, planes - omega.shape[-1]))


def match(omega: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Assign a target plane to each plane, with the least sum of squared differences of the frequencies.

    Args:
        omega, target: frequencies, [C, P].

    Returns:
        The index of each plane's target, and the sign of its rotation, [P] each.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    with torch.no_grad():
        plus = (omega[:, :, None] - target[:, None]).square().sum(0)
        minus = (omega[:, :, None] + target[:, None]).square().sum(0)
        _, columns = linear_sum_assignment(torch.minimum(plus, minus).numpy())
        order = torch.from_numpy(np.asarray(columns))
        rows = torch.arange(len(order))
        return order, torch.where(plus[rows, order] <= minus[rows, order], 1.0, -1.0).double()


def fit_frequencies(encoding: SeparableEncoding, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit the learned parameters of an encoding to frequencies, alternating with the assignment of planes.

    Args:
        encoding: encoding to fit, changed in place.
        target: target frequencies, [C, P].

    Returns:
        The fitted frequencies [C, P], and the assignment and signs of `match`.
    """
    planes = target.shape[-1]
    learned = [p for p in encoding.parameters() if p.requires_grad]
    for _ in range(ROUNDS if learned else 0):
        order, sign = match(padded(encoding.frequencies(), planes), target)
        optimiser = torch.optim.LBFGS(learned, max_iter=60, tolerance_grad=1e-14, line_search_fn="strong_wolfe")

        def loss(order: Tensor = order, sign: Tensor = sign, optimiser: Any = optimiser) -> Tensor:
            optimiser.zero_grad()
            value = (padded(encoding.frequencies(), planes) - sign * target[:, order]).square().sum()
            if value.requires_grad:
                value.backward()
            return value

        optimiser.step(loss)
    omega = padded(encoding.frequencies(), planes).detach()
    return omega, *match(omega, target)


@torch.no_grad()
def error_left(omega: Tensor, order: Tensor, sign: Tensor, target: Tensor) -> float:
    """Return the RMS of R_A(r) - G R_B(r) G^T over that of R_A(r), with G pairing the planes.

    Each pair of planes adds |Rot(a) - Rot(b)|^2 = 4 (1 - cos(a - b)) over 2 d.

    Args:
        omega: frequencies of B, [C, P].
        order, sign: assignment of planes and signs, from `match`.
        target: frequencies of A, [C, P].
    """
    r = torch.randn(256, 2, dtype=torch.float64) * 3
    difference = r @ (sign * target[:, order] - omega)  # [256, P]
    return float((2 * (1 - difference.cos())).mean().sqrt())


@torch.no_grad()
def after_the_rotation(head_dim: int) -> Row:
    """Return the row of a Cayley matrix after the rotation, which cancels in every score."""
    encoding = build_family("rope-mixed", head_dim)
    skew = torch.randn(head_dim, head_dim, dtype=torch.float64)
    basis, r = cayley(skew - skew.mT), torch.rand(9, 2, dtype=torch.float64) * 5
    q, k = (encoding(r).rotate(x) for x in torch.randn(2, 1, 1, 9, head_dim, dtype=torch.float64))
    error = relative_error((q @ basis.mT) @ (k @ basis.mT).mT, q @ k.mT)
    return {"target": "rope-mixed", "fitted": "rope-mixed, Cayley after it", "error": error, "covers": error < SAME}


def evaluate(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each pair of encodings."""
    if options.head_dim % 12:
        raise ValueError(f"--head-dim must be divisible by 12, for blocks of 3 and 4, not {options.head_dim}.")
    planes = options.head_dim // 2
    for target_name in progress(FAMILIES, desc="targets"):
        torch.manual_seed(options.seed)
        target_encoding = build_family(target_name, options.head_dim)
        with torch.no_grad():
            for p in target_encoding.parameters():
                if p.requires_grad:
                    p.add_(torch.randn_like(p) * 0.1)  # distinct starts
        target = padded(target_encoding.frequencies(), planes).detach()
        for fitted_name in FAMILIES:
            errors = []
            for start in range(STARTS):
                torch.manual_seed(options.seed + 1 + start)
                fitted = build_family(fitted_name, options.head_dim)
                errors.append(error_left(*fit_frequencies(fitted, target), target))
            error = min(errors)
            yield {"target": target_name, "fitted": fitted_name, "error": error, "covers": error < SAME}
    yield after_the_rotation(options.head_dim)


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, REDUNDANCY, on_cpu=True)
