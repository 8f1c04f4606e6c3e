"""The methods that `eval length` compares: linear and softmax attention, with a decay, and performer-pytorch.

They are attention alone here; `vit_tiny` has one layer of a ViT-tiny and the whole model.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eval.speed.measure import relative_error
from performer_string import (
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)
from performer_string.feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures
from performer_string.layers.backends import build_attention
from performer_string.ops import reference
from performer_string.utils.registry import lookup

NARROW = "linear+narrow"  # queries and keys have the width --qk-dim
METHODS = ("linear", NARROW, "linear+lf", "softmax", "performer-pytorch")  # lf: locality focusing, a distance decay
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}
GRID_TOLERANCE = 0.03  # bound on the error of decays that are summed on a bilateral grid
COMPARED_QUERIES = 64  # number of queries compared at each length; exact outputs of all would take too long


def near_square_grid(tokens: int) -> tuple[int, int]:
    """Return the grid (height, width) of a number of tokens that is nearest to a square."""
    height = next(h for h in range(math.isqrt(tokens), 0, -1) if tokens % h == 0)
    return height, tokens // height


def feature_options(feature_map: str, features: int) -> dict[str, int]:
    """Return the options for the number of features; empty for maps whose width determines it."""
    kind = lookup("feature map", feature_map, FEATURE_MAPS)
    return {"num_features": features} if issubclass(kind, RandomFeatures) else {}


def feature_map(options: argparse.Namespace, width: int) -> FeatureMap:
    """Build the map `--feature-map` with `--features` and `--heads`, for queries and keys of a width."""
    sizes = {"head_dim": width, "num_heads": options.heads}
    return build_feature_map(options.feature_map, **feature_options(options.feature_map, options.features), **sizes)


def operations(method: str, options: argparse.Namespace, tokens: int) -> float:
    """Return the necessary operations of attention, two for each multiplication with an addition.

    Forward these are two matrix products for softmax, and two projections and two sums for linear attention. Backward
    there is one product for each factor except the projection. Recomputation is not counted.

    Args:
        method: one of `METHODS`.
        options: `batch_size`, `heads`, `head_dim`, `qk_dim`, `features`, `feature_map` and `backward` of the command
            line.
        tokens: number of tokens N.

    Returns:
        Number of operations; NaN with a decay, and where features are not computed by one product.
    """
    size = 2 * options.batch_size * options.heads * tokens
    if method == "softmax":
        return size * options.head_dim * tokens * (6 if options.backward else 2)
    if method == "linear+lf":
        return math.nan
    if method in ("linear", NARROW) and options.feature_map not in ("favor+", "arc-cosine"):
        return math.nan
    of_queries = (options.qk_dim if method == NARROW else options.head_dim) * (4 if options.backward else 2)
    of_values = options.head_dim * (6 if options.backward else 2)
    return size * options.features * (of_queries + of_values)


class AttentionMethods:
    """The methods as attention alone, on queries, keys and values [B, H, N, d]."""

    def __init__(self, options: argparse.Namespace, device: torch.device):
        self.options, self.device, self.dtype = options, device, getattr(torch, options.dtype)
        sizes = {"head_dim": options.head_dim, "num_heads": options.heads}
        self.phi = feature_map(options, options.head_dim).to(device)
        self.narrow_phi = feature_map(options, options.qk_dim).to(device)
        high = max(64.0, 2 * options.sigma)
        self.locality = build_locality(
            "gaussian", num_heads=options.heads, sigma=options.sigma, sigma_bounds=(min(0.25, options.sigma / 2), high)
        ).to(device)
        torch.manual_seed(0)
        self.performer_pytorch = build_attention(
            "performer-pytorch",
            feature_map="favor+",
            seed=0,
            feature_options={"num_features": options.features},
            **sizes,
        ).to(device)

    def inputs(self, tokens: int) -> list[Tensor]:
        """Return random queries, keys and values [B, H, N, d]."""
        torch.manual_seed(tokens)
        shape = (self.options.batch_size, self.options.heads, tokens, self.options.head_dim)
        stds = (self.options.std, self.options.std, 1.0)
        tensors = [torch.randn(shape, device=self.device).mul_(std).to(self.dtype) for std in stds]
        return [x.requires_grad_(self.options.backward) for x in tensors]

    def narrowed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of the first `--qk-dim` dimensions of queries and keys."""
        first, second = (
            x.detach()[..., : self.options.qk_dim].contiguous().requires_grad_(self.options.backward) for x in (q, k)
        )
        return first, second

    def outputs(self, tokens: int, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Tensor]]:
        """Return the functions that compute the outputs [B, H, N, d], by method."""
        positions = grid_positions(near_square_grid(tokens), device=self.device)  # [N, 2]
        low_q, low_k = self.narrowed(q, k)
        return {
            "linear": lambda: linear_attention(q, k, v, self.phi),
            NARROW: lambda: linear_attention(low_q, low_k, v, self.narrow_phi),
            "linear+lf": lambda: linear_attention(q, k, v, self.phi, locality=self.locality, positions=positions),
            "softmax": lambda: softmax_attention(q, k, v),
            "performer-pytorch": lambda: self.performer_pytorch(q, k, v),
        }

    def check(self, methods: Sequence[str], tokens: int = 1024) -> None:
        """Compare each method of this library with its definition in float64, and with `--backward` its gradients too.

        performer-pytorch is not compared.

        Args:
            methods: names of the methods to check.
            tokens: number of tokens, enough for the decay to be summed in linear time.

        Raises:
            ValueError: a method whose error exceeds its tolerance.
        """
        inputs = self.inputs(tokens)
        for name in sorted(methods, key=lambda name: name == NARROW):
            if name != "performer-pytorch":
                self.check_one(name, tokens, list(inputs))

    def check_one(self, name: str, tokens: int, inputs: list[Tensor]) -> None:
        """Compare one method with its definition."""
        backward, narrow = self.options.backward, name == NARROW
        if narrow:
            inputs[:2] = self.narrowed(*inputs[:2])
        positions = grid_positions(near_square_grid(tokens), device=self.device)
        exact = [x.detach().double().requires_grad_(backward) for x in inputs]
        phi = copy.deepcopy(self.narrow_phi if narrow else self.phi).double()
        with torch.set_grad_enabled(backward):
            if narrow:
                low_q, low_k, v = inputs
                out = linear_attention(low_q, low_k, v, self.narrow_phi).double()
            else:
                out = self.outputs(tokens, *inputs)[name]().double()
            q, k = exact[:2]
            if name == "softmax":
                weights = reference.softmax_weights(q, k)
            else:
                weights = reference.linear_weights(phi.queries(q), phi.keys(k))
            if name == "linear+lf":
                weights = weights * self.locality.matrix(positions).detach()
            expected = reference.attend(weights.double(), exact[2])
            self.compare(name, f"at {tokens} tokens", out, expected)
            if backward:
                upstream = torch.randn_like(expected)
                slow = torch.autograd.grad((expected * upstream).sum(), exact)
                fast = torch.autograd.grad((out * upstream).sum(), inputs)
                for x, gradient, defined in zip("qkv", fast, slow, strict=True):
                    self.compare(name, f"in the gradient of {x} at {tokens} tokens", gradient, defined, times=3)

    def compare(self, name: str, where: str, out: Tensor, expected: Tensor, times: float = 1) -> None:
        """Raise a ValueError unless two tensors agree within a multiple of the tolerance."""
        error = relative_error(out, expected)
        bound = times * TOLERANCE[self.dtype] + (GRID_TOLERANCE if name == "linear+lf" else 0.0)
        if not torch.isfinite(expected).all():
            raise ValueError(
                f"the definition of {name} overflows with these queries and keys, so that it proves nothing: take a "
                f"smaller --std."
            )
        if not error <= bound:
            raise ValueError(
                f"{name} is {error:.2e} from its definition {where}, above {bound:.0e}: no speed is given for it."
            )

    @torch.no_grad()
    def error(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
        """Return the relative error of some of the outputs to exact softmax attention."""
        queries = torch.linspace(0, q.shape[2] - 1, min(COMPARED_QUERIES, q.shape[2]), device=self.device).long()
        expected = softmax_attention(q[:, :, queries].float(), k.float(), v.float())
        return relative_error(out[:, :, queries], expected)
