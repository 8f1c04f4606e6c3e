"""The contract of every feature map."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from performer_string.ops.forms import FeatureForm, PolynomialKernel
from performer_string.utils._compat import tensors_of
from performer_string.utils.buffers import ComputedBuffers
from performer_string.utils.dtype import full_precision, without_autocast
from performer_string.utils.validation import check_sizes

Heads: TypeAlias = "int | list[int] | slice"  # heads whose features are computed
ALL = slice(None)


class FeatureMap(ComputedBuffers):
    """Feature map phi, for which phi(q)^T phi(k) is a kernel of q and k or an estimate of it.

    A subclass overrides `queries`. All other methods have defaults; `key_scale`, `scaled_queries` and `scaled_keys`
    keep features in range at any norm whose square is in range: 1e-19 to 1e19 in float32.

    Args:
        head_dim: width d of a head.
        num_heads: number H of heads.
        num_features: width m of phi.

    Attributes:
        degree: degree p for which phi(c x) = c^p phi(x) for c > 0, or None for a map that is not homogeneous. Attention
            with a homogeneous map is invariant to the norms of queries and to a common factor of keys. A temperature
            has no effect, and the norm of a key is its weight, to the power p.
        learned: whether the features have parameters.
        scale: scale s of the logits where the kernel is a function of s q^T k, or None for a map without it.
        isotropic: whether the kernel, or its mean over draws, depends on inner products and norms alone. Rotations of
            queries and keys by their positions then keep attention translation invariant (in the mean).

    Raises:
        ValueError: a size that is no integer, or not positive.
    """

    degree: int | None = None
    learned = False
    scale: float | None = None
    isotropic: bool = True

    def __init__(self, head_dim: int, num_heads: int, num_features: int):
        super().__init__()
        check_sizes(head_dim=head_dim, num_heads=num_heads, num_features=num_features)
        self.head_dim, self.num_heads, self.num_features = head_dim, num_heads, num_features

    @property
    def homogeneous(self) -> bool:
        """Whether phi(c x) = c^p phi(x) for some p and every c > 0."""
        return self.degree is not None

    def queries(self, q: Tensor) -> Tensor:
        """Return phi(q) by its definition, which may overflow where `pair` does not.

        Products phi(q)^T phi(k) may be negative. Weights then are, too.

        Args:
            q: queries in float32 or better, also in a model of 16 bits, [B, H, N, d]; [..., d] for a map without
                parameters and buffers.

        Returns:
            Features, [B, H, N, m].
        """
        raise self.not_implemented("queries")

    def forward(self, x: Tensor) -> Tensor:
        """Return phi(x) by its definition, as `queries` does."""
        return self.queries(x)

    def keys(self, k: Tensor) -> Tensor:
        """Return phi(k) by its definition for keys [B, H, N, d], [B, H, N, m]; the same as `queries` by default."""
        return self.queries(k)

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (phi(q), phi(k)) up to factors that cancel in attention: one for each query, head and feature.

        The factor of a query and that of a head cancel in sum_j phi(q)^T phi(k_j) v_j / sum_j phi(q)^T phi(k_j). That
        of a feature cancels in phi(q)^T phi(k_j). They are chosen so that features stay in range at any norm
        whose square does.

        Args:
            q: queries, [B, H, Nq, d].
            k: keys, [B, H, Nk, d].
            key_mask: mask of the keys, [B, Nk], True for keys to attend to. The others have zero features and do not
                change the factors.

        Returns:
            Features of queries and keys, [B, H, Nq, m] and [B, H, Nk, m].
        """
        masked = None if key_mask is None else ~key_mask[:, None, :, None]  # [B, 1, N, 1]
        scale = self.key_scale(k, masked)
        return self.scaled_queries(q, scale), self.scaled_keys(k, scale, masked)

    def key_scale(self, k: Tensor, masked: Tensor | None = None) -> Tensor:
        """Return the statistic of all keys that `scaled_queries` and `scaled_keys` need, without a gradient.

        It is a maximum over the keys, so that the maximum over parts of them is that of all. By default it is zero and
        unused.

        Args:
            k: keys, [B, H, N, d].
            masked: mask of the keys, [B, 1, N, 1], True for keys to ignore.

        Returns:
            Statistic, [B, H, 1, 1 or m].
        """
        return k.new_zeros(*k.shape[:2], 1, 1)

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """Return the queries' part of `pair`, token by token.

        Args:
            q: queries of these heads, [.., H', N, d], or [.., N, d] of one.
            scale: statistic of these heads, from `key_scale`.
            heads: index of the heads whose features are computed: a slice, a list or a number.

        Returns:
            Features, [.., m].
        """
        return self.features_of_heads(self.queries, q, heads)

    def scaled_keys(self, k: Tensor, scale: Tensor, masked: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """Return the keys' part of `pair`, token by token.

        Args:
            k: keys of these heads, [.., H', N, d], or [.., N, d] of one.
            scale: statistic of these heads, from `key_scale`.
            masked: mask of the keys, True for keys to ignore and its features are zero; it broadcasts over
                [.., m].
            heads: index of the heads whose features are computed: a slice, a list or a number.

        Returns:
            Features, [.., m].
        """
        features = self.features_of_heads(self.keys, k, heads)
        return features if masked is None else features.masked_fill(masked, 0.0)

    def features_of_heads(self, features: Callable[[Tensor], Tensor], x: Tensor, heads: Heads) -> Tensor:
        """Return `queries` or `keys` of some heads.

        Those methods compute all heads at once, and each head may have weights. So a map with weights computes all
        heads and selects some. A map that overrides `scaled_queries` and `scaled_keys` can avoid that cost.

        Args:
            features: `queries` or `keys`.
            x: queries or keys of these heads, [.., H', N, d], or [.., N, d] of one.
            heads: index of the heads whose features are computed: a slice, a list or a number.

        Returns:
            Features, [.., m].
        """
        x = full_precision(x)
        heads = list(range(self.num_heads))[heads] if isinstance(heads, slice) else heads
        if not tensors_of(self) or heads == list(range(self.num_heads)):
            return features(x)
        if isinstance(heads, int):
            samples = x[None] if x.ndim == 2 else x.flatten(0, -3)
            of_head = features(samples[:, None].expand(-1, self.num_heads, -1, -1))[:, heads]  # from [.., H, N, d]
            return of_head[0] if x.ndim == 2 else of_head.unflatten(0, x.shape[:-2])
        index = torch.as_tensor(heads, device=x.device)
        expanded = x.new_zeros(*x.shape[:-3], self.num_heads, *x.shape[-2:]).index_copy(-3, index, x)
        return features(expanded).index_select(-3, index)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return log E phi(q_i)^T phi(k_j), the mean over draws, in float32 or better.

        Its softmax over j is the attention of the map in the limit of many features. It is -inf where the kernel is
        zero.

        Args:
            q: queries, [B, H, Nq, d].
            k: keys, [B, H, Nk, d].

        Returns:
            Logarithms, [B, H, Nq, Nk].
        """
        raise self.not_implemented("log_kernel")

    def not_implemented(self, method: str) -> NotImplementedError:
        """Return the error for a method that this map does not override."""
        return NotImplementedError(
            f"{type(self).__name__} has no {method}, needed here: docs/guides/own-feature-map.md says what a map gives."
        )

    @property
    def has_random_features(self) -> bool:
        """Whether `redraw` draws other features."""
        return type(self).redraw is not FeatureMap.redraw

    def redraw(self, step: int) -> None:
        """Replace random features by the draw of (seed, step). A map without random features does nothing.

        Args:
            step: index of the training step.
        """

    def form(self) -> FeatureForm | None:
        """Return the map as fused kernels know it, or None for a map that is neither an exponential nor a power."""
        return None

    def polynomial_kernel(self) -> PolynomialKernel | None:
        """Return the kernel where it is exactly a polynomial of q^T k, which needs no features; None for others."""
        return None

    def extra_repr(self) -> str:
        """Return the sizes, for `repr`."""
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, num_features={self.num_features}"


def inner_products(q: Tensor, k: Tensor) -> Tensor:
    """Return q_i^T k_j, [B, H, Nq, Nk], in float32 or better under autocast too."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        return q.to(dtype) @ k.to(dtype).mT


def largest_key_norm(k: Tensor, masked: Tensor | None) -> Tensor:
    """Return the largest norm of the keys of each head, in float32 or better.

    Args:
        k: keys, [B, H, N, d].
        masked: mask of the keys, [B, 1, N, 1], True for keys to ignore.

    Returns:
        Norms, [B, H, 1, 1].
    """
    norms = k.norm(dim=-1, keepdim=True, dtype=torch.promote_types(k.dtype, torch.float32))
    if masked is not None:
        norms = norms.masked_fill(masked, 0.0)
    return norms.amax(dim=-2, keepdim=True)
