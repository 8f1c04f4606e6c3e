"""Attention with the polynomial kernels of degree 2, without their features: plain torch operations on any device.

attention.py  `summed_attention`: attention from sums weighted by squared inner products
squares.py    `squared_sums`: these sums in the form that is predicted to be cheaper, and their gradients
tiles.py      the form of N x N weights, a tile of them at a time
products.py   the form in time linear in N, by the products of pairs of coordinates
"""

from performer_string.ops.polynomial.attention import summed_attention
from performer_string.ops.polynomial.squares import is_linear_cheaper_on_gpu

__all__ = ["is_linear_cheaper_on_gpu", "summed_attention"]
