"""Several value maps in one layer, each around the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from performer_string.layers.values.base import ValueMap, Weighted
from performer_string.ops.layout import TokenLayout
from performer_string.position.base import Sizes
from performer_string.utils.registry import check_reserved, construct, lookup
from performer_string.utils.validation import check_type


class ComposedValues(ValueMap):
    """Value maps M_1, M_2, ..., each around the next: o = M_1(M_2(... A ...)) v.

    RiemannFormer (arXiv:2506.07405, section 2.4) has a gate and a connection at once, o_i = g_i sum_j A_ij R_V(p_i)^-1
    R_V(p_j) v_j, which is the default.

    Args:
        sizes: sizes of the attention.
        maps: names of value maps, the outermost first, each at most once.
        options: options of each map, by its name.

    Raises:
        ValueError: fewer than two maps, a map that occurs twice or is itself composed, options of a map that is not
            listed, or options that are no mapping.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        maps: Sequence[str] = ("gating", "connection"),
        options: Mapping[str, Any] | None = None,
    ):
        super().__init__(sizes)
        from performer_string.layers.values import VALUE_MAPS  # not above: it imports this class

        if len(set(maps)) < max(2, len(maps)):
            raise ValueError(f"maps must be two or more value maps, each once, not {list(maps)}.")
        options = dict(options or {})
        for name in options:
            if name not in maps:
                raise ValueError(f"options of {name!r}, which is none of the maps {', '.join(maps)}: leave them out.")
            check_type(f"options of {name}", options[name], Mapping[str, Any] | None)
        simple = {name: build for name, build in VALUE_MAPS.items() if not issubclass(build, ComposedValues)}
        self.maps = nn.ModuleList()
        for name in maps:
            check_reserved(f"options of {name}", options.get(name))
            self.maps.append(
                construct("value map", name, lookup("value map", name, simple), options.get(name) or {}, sizes=sizes)
            )
        self.counts_patches = any(each.counts_patches for each in self.maps)
        self.convolves = any(each.convolves for each in self.maps)

    def forward(self, attend: Weighted, v: Tensor, *, tokens: Tensor, queries: Tensor, layout: TokenLayout) -> Tensor:
        """Return M_1(M_2(... A ...)) v; arguments as those of `ValueMap`."""
        for each in reversed(list(self.maps)[1:]):
            attend = partial(each, attend, tokens=tokens, queries=queries, layout=layout)
        return self.maps[0](attend, v, tokens=tokens, queries=queries, layout=layout)
