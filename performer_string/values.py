"""What may be done to the values of attention: before the sum over keys, and to its result after it.

Attention is linear in its values, o = A v, whatever A is: softmax, linear in N, masked or attenuated by distance. The
structures here wrap it from outside, so that none of those has to know of them. Of their source, RiemannFormer
(arXiv:2506.07405), only the abstracts and the text beside its released code were at hand: the forms below are the
plainest of what they name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from performer_string.choices import construct, lookup
from performer_string.encodings import build_encoding
from performer_string.encodings.base import Sizes

Source = Literal["token", "query"]
Sum = Callable[[Tensor], Tensor]  # v -> A v, [B, H, N, d] to the same


class ValueMap(nn.Module):
    """Wraps the weighted sum of attention.

    Args:
        sizes: the attention it serves.
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.head_dim, self.num_heads = sizes.head_dim, sizes.num_heads

    def forward(self, attend: Sum, v: Tensor, *, tokens: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        """The outputs of attention, [B, H, N, d].

        Args:
            attend: v -> A v.
            v: values, [B, H, N, d].
            tokens: what queries, keys and values were projected from, [B, N, H d].
            queries: as attention gets them, before their rotation, [B, H, N, d].
            positions: of the tokens, [N, C], or [B, N, C] for each sample.
        """
        raise NotImplementedError


class FiberGating(ValueMap):
    """o_i = g_i sum_j A_ij v_j with a gate 0 < g < 2 for each head and token, which is 1 where its argument is 0.

    g_i = 2 sigmoid(w_h . x_i + b_h) of the token x_i, or 2 sigmoid(w_h . q_i + b_h) of its query, which is that of the
    gauge B^T q where the basis B of an encoding is folded into the projections.

    Args:
        source: `token` or `query`.
    """

    def __init__(self, sizes: Sizes, *, source: Source = "token"):
        super().__init__(sizes)
        self.source: Source = lookup("source of the gate", source, {name: name for name in get_args(Source)})
        width = sizes.head_dim * (sizes.num_heads if source == "token" else 1)
        self.weight = nn.Parameter(torch.randn(sizes.num_heads, width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(sizes.num_heads))

    def gates(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """g, [B, H, N]."""
        if self.source == "token":
            logits = torch.einsum("bnw,hw->bhn", tokens, self.weight.to(tokens.dtype))
        else:
            logits = torch.einsum("bhnd,hd->bhn", queries, self.weight.to(queries.dtype))
        return 2 * (logits + self.bias[:, None]).sigmoid()

    def forward(self, attend: Sum, v: Tensor, *, tokens: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        return attend(v) * self.gates(tokens, queries)[..., None].to(v.dtype)


class MetricGating(FiberGating):
    """o_i = sum_j A_ij g_i g_j v_j with the gates of `FiberGating`: a metric of each pair from the content of both.

    RiemannFormer's metric scaling outside of the softmax (third version): the weights stay normalised without it.
    """

    def forward(self, attend: Sum, v: Tensor, *, tokens: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        gates = self.gates(tokens, queries)[..., None].to(v.dtype)  # [B, H, N, 1]
        return attend(v * gates) * gates


class TurnedValues(ValueMap):
    """What both uses of R_V share: an encoding of its own, by name.

    Args:
        encoding: a name in `ENCODINGS` of an encoding that turns.
        encoding_options: of that encoding.
    """

    def __init__(
        self, sizes: Sizes, *, encoding: str = "rope-mixed", encoding_options: Mapping[str, Any] | None = None
    ):
        super().__init__(sizes)
        built: dict[str, Any] = {name: getattr(sizes, name) for name in ("head_dim", "num_heads", "coord_dim", "grid")}
        built["layers"] = 1
        options = dict(encoding_options or {})
        if given := [name for name in built if name in options]:
            raise ValueError(f"encoding_options of values: {given[0]} is the layer's own; leave it out.")
        self.encoding = build_encoding(encoding, **built, **options)
        if self.encoding.additive:
            raise ValueError(
                f"values need an encoding that turns them, which {encoding!r} does not: take 'rope-mixed'."
            )


class GroupAction(TurnedValues):
    """o_i = sum_j A_ij R_V(p_j) v_j: absolute by design, since a move of all tokens turns every output."""

    def forward(self, attend: Sum, v: Tensor, *, tokens: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        rotation = self.encoding(positions)
        return rotation.outer(attend(rotation.rotate(v)))


class Connection(TurnedValues):
    """o_i = sum_j A_ij R_V(p_i)^-1 R_V(p_j) v_j: values are brought to the place of the query.

    R_V(p_i)^-1 does not depend on j: values are turned before the sum, and outputs are turned back after it. For an
    encoding whose generators commute the product is R_V(p_j - p_i), and a common move of all tokens changes nothing.
    """

    def forward(self, attend: Sum, v: Tensor, *, tokens: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
        rotation = self.encoding(positions)
        return rotation.unrotate(attend(rotation.rotate(v)))


VALUE_MAPS: dict[str, type[ValueMap]] = {
    "gating": FiberGating,
    "metric-gating": MetricGating,
    "group-action": GroupAction,
    "connection": Connection,
}


def build_value_map(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    grid: tuple[int, ...] | None = None,
    **options: Any,
) -> ValueMap:
    """A structure on the values by its name in `VALUE_MAPS`.

    Args:
        head_dim, num_heads: of the attention that it wraps.
        coord_dim: dimension of the positions.
        grid: the training grid, for encodings that need it.
        options: its own, as its docstring lists them.

    Raises:
        ValueError: an unknown name or option, with the nearest known one.
    """
    sizes = Sizes(head_dim, num_heads, coord_dim, grid)
    return construct("value map", name, lookup("value map", name, VALUE_MAPS), options, sizes=sizes)
