"""`python -m eval cost`: operations against a count by hand, and the files it writes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from eval.__main__ import main
from eval.measure import multiplications
from performer_string import ViT, ViTConfig, fold
from tests.helpers.checkpoints import CONFIG, read, save

WIDTH, DEPTH, HEADS, FEATURES, CLASSES = 24, 3, 2, 16, 5
HEAD = WIDTH // HEADS


def by_hand(tokens: int, patch: int, attention: int) -> int:
    """Of a model, whose heads each take `attention` multiplications."""
    embed, block = tokens * patch * WIDTH, tokens * WIDTH * (3 * WIDTH + WIDTH + 2 * 4 * WIDTH)
    return embed + DEPTH * (block + HEADS * attention) + WIDTH * CLASSES


@pytest.mark.parametrize("size", [(16, 24), (32, 24)])
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "softmax"},
        {"feature_map": "arc-cosine", "feature_options": {"num_features": FEATURES}},
        {"feature_map": "polynomial"},
    ],
    ids=str,
)
def test_operations_are_those_counted_by_hand(options, size):
    config = ViTConfig(
        image_size=[16, 24], patch_size=4, in_channels=2, num_classes=CLASSES, width=WIDTH, depth=DEPTH, **options
    )
    config = replace(config, num_heads=HEADS)
    model, tokens = fold(ViT(config).eval()), size[0] * size[1] // 16
    with torch.inference_mode():
        found = multiplications(partial(model, torch.randn(1, 2, *size)))
    if config.attention == "softmax":
        assert found == by_hand(tokens, 4 * 4 * 2, 2 * tokens**2 * HEAD)
    elif (
        config.feature_map == "arc-cosine"
    ):  # features of queries and keys, their sums with the values, and those with the queries
        assert found == by_hand(tokens, 4 * 4 * 2, 4 * tokens * FEATURES * HEAD)
    else:
        assert found > by_hand(tokens, 4 * 4 * 2, 2 * tokens * HEAD * HEAD * (HEAD + 1) // 2)


def test_the_features_of_favor_are_counted_inside_flash_attention():
    """Two attentions, of landmarks to keys and of queries to landmarks, each with a column or two for its biases."""
    config = ViTConfig(image_size=[16, 24], patch_size=4, in_channels=2, num_classes=CLASSES, width=WIDTH, depth=DEPTH)
    config = replace(config, num_heads=HEADS, feature_map="favor+", feature_options={"num_features": FEATURES})
    model, tokens = fold(ViT(config).eval()), 24
    with torch.inference_mode():
        found = multiplications(partial(model, torch.randn(1, 2, 16, 24)))
    least = by_hand(tokens, 4 * 4 * 2, 4 * tokens * FEATURES * HEAD)
    assert least <= found <= by_hand(tokens, 4 * 4 * 2, 4 * tokens * FEATURES * (HEAD + 4))


def test_of_checkpoints(tmp_path, capsys):
    paths = [save(tmp_path / f"linear-seed{seed}", replace(CONFIG, seed=seed)) for seed in (0, 1)]
    paths.append(save(tmp_path / "softmax-seed0", replace(CONFIG, attention="softmax", feature_options={})))
    given = ["--resolutions", "60", "84", "--images", "16", "--rounds", "5", "--device", "cpu"]
    main(["cost", "--checkpoint", *map(str, paths), *given])
    header, rows = read(tmp_path / "results" / "cost.csv")
    assert header[0].startswith("# command: python -m eval cost")
    assert [(row["model"], row["resolution"], row["tokens"]) for row in rows] == [
        (model, size, tokens)
        for size, tokens in (("60", "25"), ("84", "49"))
        for model in ("linear-seed0", "linear-seed1", "softmax-seed0")
    ]
    for row in rows:
        assert float(row["images/s"]) == pytest.approx(1000 / float(row["ms"]), rel=1e-2)
        assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])
    assert [float(row["to first"]) for row in rows if row["model"] == "linear-seed0"] == [1, 1]
    assert float(rows[3]["GMACs"]) > float(rows[0]["GMACs"])
    assert "| linear, mean of 2 seeds |" in capsys.readouterr().out
    assert (tmp_path / "results" / "cost.png").stat().st_size > 5000
