"""Random cases for property tests: vectors of any norm, masks and types, and how close a result must be.

`PROPERTY_EXAMPLES=10000 python -m pytest -k properties -o faulthandler_timeout=0` tries so many cases of each property,
instead of 200. Without the limit of five minutes a test they take minutes each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from torch import Tensor

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WIDTHS = [1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 64]
# The same cases in every run. A case may take any time, since other processes share the machine.
try_cases = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values [B, H, N, d] in a type, with a mask [B, N] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors."""
        return self.v.dtype

    @property
    def eps(self) -> float:
        """Rounding of the type that sums are computed in, float32 or better."""
        return float(torch.finfo(torch.promote_types(self.dtype, torch.float32)).eps)

    @property
    def rounding(self) -> float:
        """Rounding of the type itself."""
        return float(torch.finfo(self.dtype).eps)

    @property
    def largest(self) -> float:
        """The largest entry of the values of keys that take part."""
        return float(self.values_that_count().abs().max())

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values in float64."""
        return self.q.double(), self.k.double(), self.v.double()

    def values_that_count(self) -> Tensor:
        """Return the values in float64, zero where masked."""
        v = self.v.double()
        return v if self.mask is None else v.masked_fill(~self.mask[:, None, :, None], 0.0)


def vectors(shape: tuple[int, ...], norm: float, mixed: bool, equal: bool, generator: torch.Generator) -> Tensor:
    """Return vectors of a norm; with `mixed`, of norms from 1e-4 times it up; with `equal`, the same for all tokens."""
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) * norm
    if mixed:
        x = x * 10 ** (-4 * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64))
    return x[..., :1, :].expand(shape).contiguous() if equal else x


norms = st.integers(-17, 16).map(lambda n: 10 ** (n / 4) if n > -17 else 0.0)
tokens = st.sampled_from([1, 2, 3, 7, 16, 33, 40])
seeds = st.integers(0, 2**20)


@st.composite
def inputs(draw: Callable[..., Any], heads: int = 2, widths: list[int] = WIDTHS, count: int | None = None) -> Inputs:
    """Draw queries, keys and values of norms from 0 to 1e4."""
    seed, dtype, width = draw(seeds), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(widths))
    number = draw(tokens) if count is None else count
    masking = draw(st.sampled_from(["none", "none", "some", "all"]))
    generator = torch.Generator().manual_seed(seed)
    shape = (2, heads, number, width)
    vector = st.tuples(norms, st.booleans(), st.sampled_from([False, False, False, True]))
    q, k, v = (vectors(shape, *draw(vector), generator).to(dtype) for _ in range(3))
    mask = None
    if masking != "none":
        mask = torch.rand(2, number, generator=generator) < 0.6
        if masking == "all":
            mask[0] = False
    return Inputs(q, k, v, mask, seed)


def check(out: Tensor, expected: Tensor, case: Inputs, relative: Tensor | float, bound: float = 1.0) -> None:
    """Check that an output is finite, a mean of values, and near its definition where that can be known.

    Args:
        out: of attention, [B, H, N, d].
        expected: by the definition in float64.
        case: its inputs.
        relative: what rounding may change in the weights, relative to them, [B, H, N, 1] or a number. Beyond 1 % the
            definition itself hangs on the last digit, and the output only has to be a mean of values.
        bound: largest sum of weights of a query.
    """
    assert out.dtype == case.dtype
    assert out.isfinite().all()
    largest = case.largest
    out, room = out.double(), 1 + 8 * case.rounding + 1e-4 * (case.dtype != torch.float64)
    if isinstance(relative, Tensor):  # kernels whose features cancel, where a query meets hardly any key
        room = room + relative.clamp(max=1.0)
    assert (out.abs() <= bound * largest * room + torch.finfo(case.dtype).tiny).all(), "more than a mean of values"
    relative = torch.as_tensor(relative, dtype=torch.float64).expand(*out.shape[:-1], 1)
    allowed = largest * bound * (relative + 4 * case.rounding) + torch.finfo(case.dtype).smallest_normal
    error = (out - expected).abs().detach()
    worst = (error / allowed).masked_fill(relative >= 0.01, 0.0).max() if error.numel() else 0.0
    assert float(worst) <= 1, f"{float(worst)} times as far from the definition as rounding explains"


@contextmanager
def refusing(*words: str) -> Iterator[None]:
    """Leave a case out where what is built says that it cannot be, by an error with one of these words."""
    try:
        yield
    except ValueError as error:
        if not any(word in str(error) for word in words):
            raise
        reject()
