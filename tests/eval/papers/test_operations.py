"""Operations of inference against counts by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from eval.papers.measures import gigaflops
from eval.papers.results import NoValueError, Results
from performer_string import ViTConfig

WIDTH, PATCHES, DEPTH, HEADS = 32, 16, 3, 2
TOKENS = PATCHES + 1  # with a class token
PLAIN = {
    **{"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": 10, "pool": "cls", "attention": "softmax"},
    **{"width": WIDTH, "depth": DEPTH, "num_heads": HEADS, "encoding": "none", "mlp_ratio": 4.0},
}


def group(row: str = "row", **changes) -> SimpleNamespace:
    config = ViTConfig(**{**PLAIN, **changes})
    return SimpleNamespace(data="set", row=row, attention="", config=lambda: config)


def count(**changes) -> float:
    """Return the operations of a model that is changed by fields, or counted by options of a column."""
    options = {name: changes.pop(name) for name in ("exponential", "planes") if name in changes}
    return gigaflops(Results({}, torch.device("cpu")), group(**changes), **options).value * 1e9


def by_hand(depth: int) -> int:
    embedding, head = PATCHES * 4 * 4 * 3 * WIDTH, WIDTH * 10
    products = TOKENS * WIDTH * WIDTH * (4 + 2 * 4) + 2 * TOKENS * TOKENS * WIDTH  # projections, MLP, scores, values
    norms = 5 * TOKENS * WIDTH
    return embedding + head + depth * (products + 2 * norms) + norms


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
def test_products_and_layer_norms_of_any_depth(depth):
    """Five an element of a norm. The depths above two follow from layers one and two."""
    assert count(depth=depth) == pytest.approx(by_hand(depth), abs=0.5)


def test_rotations_by_planes_are_four_multiplications_each():
    """Of queries and keys of all tokens, in all heads: half as many planes as a head is wide."""
    more = 2 * 4 * TOKENS * (WIDTH // 2) * DEPTH
    for encoding in ("rope", "rope-mixed"):
        assert count(encoding=encoding) == pytest.approx(by_hand(DEPTH), abs=0.5)
        assert count(encoding=encoding, planes=True) == pytest.approx(by_hand(DEPTH) + more, abs=0.5)
    shared = count(encoding="rope-mixed", planes=True, share_layers=True)
    assert shared == pytest.approx(by_hand(DEPTH) + more, abs=0.5)
    assert count(planes=True) == pytest.approx(by_hand(DEPTH), abs=0.5)


def test_lieres_blocks_are_products_and_its_exponential_is_apart():
    """A block of b is b multiplications an element of queries and keys. Each layer has an exponential of its own."""
    blocks = {b: {"encoding": "liere", "encoding_options": {"block_size": b}} for b in (4, 16)}
    for b, options in blocks.items():
        plain = count(**options)
        assert plain == pytest.approx(by_hand(DEPTH) + 2 * TOKENS * WIDTH * b * DEPTH, abs=0.5)
        alone, both = (count(**options, exponential=kind) for kind in ("alone", True))
        assert both == pytest.approx(plain + alone, abs=0.5)
        matrices = PATCHES * WIDTH // b * DEPTH
        products = (alone - matrices * 2 * b**2) / (matrices * b**3)  # of matrices, without the sum of two generators
        assert products == pytest.approx(round(products), abs=1e-6)
        assert products >= 3
        assert count(**options, exponential="alone", share_layers=True) == pytest.approx(alone / DEPTH, abs=0.5)
    assert count(exponential="alone") == 0
    with pytest.raises(ValueError, match="must be true, false or alone"):
        count(exponential="only")


def test_the_exponential_is_counted_of_the_same_generators():
    """Larger ones take more squarings, so that the count would be of the draw."""
    start = {"start": "uniform", "init_scale": 6.28}
    counts = {count(encoding="liere", encoding_options=start, exponential="alone") for _ in range(8)}
    assert len(counts) == 1


def test_increase_is_relative_to_the_reference_row():
    groups = {("set", name, ""): each for name, each in (("plain", group("plain")), ("wide", group("wide", width=64)))}
    results = Results(groups, torch.device("cpu"), references=dict.fromkeys(("plain", "wide", "other"), "plain"))
    plain, wide = groups.values()
    ratio = gigaflops(results, wide).value / gigaflops(results, plain).value
    assert gigaflops(results, wide, increase=True).value == pytest.approx(100 * (ratio - 1))
    with pytest.raises(NoValueError, match=r"reference$"):
        gigaflops(results, plain, increase=True)
    with pytest.raises(NoValueError, match="reference not run"):
        gigaflops(Results({}, torch.device("cpu")), wide, increase=True)
