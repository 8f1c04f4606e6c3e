"""Classes of one's own in the registries: what their constructors must take."""

from __future__ import annotations

import pytest
from torch import nn

from performer_string import (
    ENCODINGS,
    FEATURE_MAPS,
    LOCALITIES,
    VALUE_MAPS,
    FeatureMap,
    RelativeBias,
    SeparableEncoding,
    Sizes,
    ViTConfig,
    build_encoding,
    build_feature_map,
    build_locality,
    build_value_map,
)


class WithoutSizes(SeparableEncoding):
    def __init__(self, head_dim, num_heads):
        super().__init__(Sizes(head_dim, num_heads))


class WithoutHeads(FeatureMap):
    def __init__(self, dim):
        super().__init__(dim, 1, num_features=4)


class OtherName(RelativeBias):
    def __init__(self, heads):
        super().__init__(heads, True)


class WithoutAnything(nn.Module):
    def __init__(self):
        super().__init__()


CASES = [
    ("encoding", ENCODINGS, WithoutSizes, r"WithoutSizes\(head_dim, num_heads\) lacks sizes. The library passes sizes"),
    ("feature_map", FEATURE_MAPS, WithoutHeads, r"WithoutHeads\(dim\) lacks head_dim and num_heads"),
    ("locality", LOCALITIES, OtherName, r"OtherName\(heads\) lacks num_heads. The library passes num_heads by name"),
    ("values", VALUE_MAPS, WithoutAnything, r"WithoutAnything\(\) lacks sizes"),
]
BUILDERS = {
    "encoding": lambda name: build_encoding(name, head_dim=4, num_heads=2),
    "feature_map": lambda name: build_feature_map(name, head_dim=4, num_heads=2),
    "locality": lambda name: build_locality(name, num_heads=2),
    "values": lambda name: build_value_map(name, head_dim=4, num_heads=2),
}


@pytest.mark.parametrize(("field", "table", "kind", "message"), CASES, ids=[case[0] for case in CASES])
def test_a_constructor_without_what_the_library_passes_is_named(field, table, kind, message, monkeypatch):
    """And it is not called a missing option, which no user could give."""
    monkeypatch.setitem(table, "mine", kind)
    with pytest.raises(ValueError, match=message):
        BUILDERS[field]("mine")
    with pytest.raises(ValueError, match=message):
        ViTConfig(variant="micro", **{field: "mine"})


def test_an_option_without_a_default_stays_an_option(monkeypatch):
    class WithSpeed(SeparableEncoding):
        def __init__(self, sizes, *, speed):
            super().__init__(sizes)

    monkeypatch.setitem(ENCODINGS, "mine", WithSpeed)
    with pytest.raises(ValueError, match="encoding 'mine' needs the option 'speed'"):
        BUILDERS["encoding"]("mine")


def test_a_constructor_may_take_what_comes(monkeypatch):
    class Any(FeatureMap):
        def __init__(self, **sizes):
            super().__init__(sizes["head_dim"], sizes["num_heads"], num_features=4)

    monkeypatch.setitem(FEATURE_MAPS, "mine", Any)
    assert BUILDERS["feature_map"]("mine").head_dim == 4


def test_an_encoding_has_to_be_a_class(monkeypatch):
    monkeypatch.setitem(ENCODINGS, "made", lambda sizes: ENCODINGS["rope"](sizes))
    with pytest.raises(TypeError, match="must be a subclass of Encoding"):
        build_encoding("made", head_dim=8, num_heads=2)
