"""Attention as pure functions of queries, keys and values [B, H, N, d].

The definition: `reference.py`, with the rotations and decays of `reference_positions.py`. Dense, and sharing no code
with anything below.

The functions and the choice among their implementations:

    linear.py            `linear_attention`, and `attend_linear`, which chooses by map, device and context
    softmax.py           `softmax_attention`, by torch's kernels (fused_softmax.py), also with a Gaussian decay
                         (decayed_softmax.py)
    rotated_features.py  linear attention whose features are rotated, instead of queries and keys

The fast paths of linear attention:

    chunked/     exponential and power features, in chunks of tokens
    polynomial/  polynomial kernels, without features
    triton/      both on NVIDIA GPUs

A relative bias has its own sums in `bias/linear_time/`. What all of them share:

    layout.py                    positions, grid, prefix and mask of the tokens, and the other inputs of attention
    validation.py                checks of arguments
    packing.py                   sequences of several lengths in one batch
    forms.py                     the equation of a feature map, as the fast paths take it
    rotary.py, unit_length.py    rotation and normalisation of queries and keys
    key_bias.py                  a bias of each key

Words: planes are the pairs of dimensions (p, p + P) that are rotated, given by their cosines and sines [..., N, P].
Sums are sum_j phi_f(k_j) v_j and sum_j phi_f(k_j) over the keys, which linear attention needs in place of weights.
"""

from __future__ import annotations

from typing import Any

from performer_string.utils.public_names import public_name


def __getattr__(name: str) -> Any:
    return public_name(__name__, name)
