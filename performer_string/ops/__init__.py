"""Attention as pure functions of queries, keys and values [B, H, N, d], with their definitions in `reference`.

Words that the modules share:

- planes: the pairs of dimensions (p, p + P) that are rotated, given by their cosines and sines, [..., N, P]
- features: phi(x) of the m features of a feature map; form: the equation of phi as a fused kernel takes it
- layout: positions of the tokens, prefix tokens first, with the mask of the keys and the regular grid if there is one
- sums: sum_j phi_f(k_j) v_j and sum_j phi_f(k_j) over the keys, which linear attention needs in place of weights
- loop: one pass over chunks of the keys, which computes the sums, and one over chunks of the queries
"""

from __future__ import annotations

from typing import Any

from performer_string.utils.public_names import public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
