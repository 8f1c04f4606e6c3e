"""What a feature map is, and what fused kernels know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from performer_string.ops.forms import FeatureForm
from performer_string.utils._compat import tensors_of
from performer_string.utils.buffers import ComputedBuffers
from performer_string.utils.dtype import full_precision

Heads: TypeAlias = "int | list[int] | slice"  # whose features are asked for
ALL = slice(None)


class FeatureMap(ComputedBuffers):
    """phi, with phi(q)^T phi(k) a kernel of q and k or an estimate of it.

    Args:
        head_dim: d.
        num_heads: H.
        num_features: m, the width of phi.

    Attributes:
        degree: p where phi(c x) = c^p phi(x) for c > 0, so that no attention weight changes with the norm of a query
            or with a common factor of the keys (a temperature has no effect), and a key's norm is its weight; None for
            a map that is not homogeneous.
        learned: whether the features have parameters, and are no draw nor exact.
        scale: s where the kernel is a function of s q.k; None for one that sees no scale of the logits.
        isotropic: whether the kernel, or its mean over draws, sees inner products and norms alone, so that a rotation
            of queries and keys by their positions keeps attention translation invariant (in the mean).
    """

    degree: int | None = None
    learned = False
    scale: float | None = None
    isotropic: bool = True

    def __init__(self, head_dim: int, num_heads: int, num_features: int):
        super().__init__()
        for name, value in (("head_dim", head_dim), ("num_heads", num_heads), ("num_features", num_features)):
            if value < 1:
                raise ValueError(f"{name} has to be positive, not {value}.")
        self.head_dim, self.num_heads, self.num_features = head_dim, num_heads, num_features

    @property
    def homogeneous(self) -> bool:
        return self.degree is not None

    def queries(self, q: Tensor) -> Tensor:
        """phi(q), [B, H, N, m]: the definition, which may overflow where `pair` does not, and all that a map has to
        give. Without parameters and buffers it takes any [..., d].
        """
        raise self.lacks("queries")

    def keys(self, k: Tensor) -> Tensor:
        """phi(k), [B, H, N, m]."""
        return self.queries(k)

    def pair(self, q: Tensor, k: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(phi(q), phi(k)) up to a factor for each query and one for each head: what attention uses.

        Those factors cancel in sum_j phi(q)^T phi(k_j) v_j / sum_j phi(q)^T phi(k_j), and choosing them well keeps
        the features in range at any norm. Keys outside `key_mask` [B, N] have zero features and no say in the
        factors.
        """
        hidden = None if key_mask is None else ~key_mask[:, None, :, None]  # [B, 1, N, 1]
        scale = self.key_scale(k, hidden)
        return self.scaled_queries(q, scale), self.scaled_keys(k, scale, hidden)

    def key_scale(self, k: Tensor, hidden: Tensor | None = None) -> Tensor:
        """What `scaled_queries` and `scaled_keys` have to know of all keys, without a gradient: [B, H, 1, 1 or m].

        A maximum over the keys, so that that of all is the maximum over that of parts.

        Nothing unless a map says otherwise, whose features are then used as they are.

        Args:
            hidden: masked keys, [B, 1, N, 1], True where a key takes no part.
        """
        return k.new_zeros(*k.shape[:2], 1, 1)

    def scaled_queries(self, q: Tensor, scale: Tensor, heads: Heads = ALL) -> Tensor:
        """`pair`'s phi(q), token by token: [.., H', N, d] of these heads, or [.., N, d] of one, to [.., m]."""
        return self.of_heads(self.queries, q, heads)

    def scaled_keys(self, k: Tensor, scale: Tensor, hidden: Tensor | None = None, heads: Heads = ALL) -> Tensor:
        """`pair`'s phi(k), token by token; zero where hidden, which broadcasts over [.., m]."""
        features = self.of_heads(self.keys, k, heads)
        return features if hidden is None else features.masked_fill(hidden, 0.0)

    def of_heads(self, features: Callable[[Tensor], Tensor], x: Tensor, heads: Heads) -> Tensor:
        """`queries` or `keys`, which are of all heads, of some: [.., H', N, d], or [.., N, d] of one, to [.., m].

        Others may have weights of their own, so that a map with any is asked for all and the wanted ones are taken, at
        that many times the cost. One that overrides `scaled_queries` and `scaled_keys` need not pay it.
        """
        x = full_precision(x)
        if not tensors_of(self) or heads == ALL or heads == list(range(self.num_heads)):
            return features(x)
        if isinstance(heads, int):
            whole = x.flatten(0, -3)[:, None].expand(-1, self.num_heads, -1, -1)  # [.. , H, N, d]
            return features(whole)[:, heads].unflatten(0, x.shape[:-2])
        place = torch.as_tensor(heads, device=x.device)
        whole = x.new_zeros(*x.shape[:-3], self.num_heads, *x.shape[-2:]).index_copy(-3, place, x)
        return features(whole).index_select(-3, place)

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """log E phi(q_i)^T phi(k_j) over draws, in float32 or better: [B, H, Nq, d], [B, H, Nk, d] -> [B, H, Nq, Nk].

        For study: its softmax over j is the attention of the map in the limit of many features.
        """
        raise self.lacks("log_kernel")

    def lacks(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method}, needed here: docs/extending.md says what a feature map gives."
        )

    def redraw(self, step: int) -> None:
        """New random features, a function of (seed, step) alone; nothing where there are none."""

    def form(self) -> FeatureForm | None:
        """The map as fused kernels know it; None for a map that is neither an exponential nor a power."""
        return None

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, num_features={self.num_features}"


def inner_products(q: Tensor, k: Tensor) -> Tensor:
    """q_i^T k_j in float32 or better, whatever autocast: [B, H, Nq, Nk]."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        return q.to(dtype) @ k.to(dtype).mT
