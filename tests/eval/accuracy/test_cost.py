"""`python -m eval cost`: operations against a count by hand, and the files it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eval.cli import main
from performer_string import ENCODINGS, LOCALITIES, ViT, ViTConfig, fold
from tests.helpers.checkpoints import CONFIG, read, save
from train.inspection import multiplications

WIDTH, DEPTH, HEADS, FEATURES, CLASSES = 24, 3, 2, 16, 5
HEAD = WIDTH // HEADS


def by_hand(tokens: int, patch: int, attention: int) -> int:
    """Return the multiplications of a model whose heads each take `attention` of them."""
    embed, block = tokens * patch * WIDTH, tokens * WIDTH * (3 * WIDTH + WIDTH + 2 * 4 * WIDTH)
    return embed + DEPTH * (block + HEADS * attention) + WIDTH * CLASSES


def count(size: tuple[int, int], **options) -> int:
    """Return the multiplications that are counted for one image of a folded model."""
    config = ViTConfig(
        image_size=[16, 24], patch_size=4, in_channels=2, num_classes=CLASSES, width=WIDTH, depth=DEPTH, num_heads=HEADS
    )
    return multiplications(ViT(replace(config, **options)), size)


@pytest.mark.parametrize("size", [(16, 24), (32, 24)], ids=str)
def test_operations_are_those_counted_by_hand(size):
    tokens, patch = size[0] * size[1] // 16, 4 * 4 * 2
    assert count(size, attention="softmax") == by_hand(tokens, patch, 2 * tokens**2 * HEAD)
    # features of queries and keys, their sums with the values, and those with the queries
    arc_cosine = count(size, feature_map="arc-cosine", feature_options={"num_features": FEATURES})
    assert arc_cosine == by_hand(tokens, patch, 4 * tokens * FEATURES * HEAD)
    # so few tokens have N x N weights, and the denominator is one more column of the values
    polynomial = count(size, feature_map="polynomial")
    assert polynomial == by_hand(tokens, patch, tokens**2 * (HEAD + HEAD + 1))


def test_operations_of_favor_inside_flash_attention():
    """Two attentions, of landmarks to keys and of queries to landmarks, each with a column or two for its biases."""
    operations = count((16, 24), feature_map="favor+", feature_options={"num_features": FEATURES})
    least, most = (by_hand(24, 4 * 4 * 2, 4 * 24 * FEATURES * width) for width in (HEAD, HEAD + 4))
    assert least <= operations <= most


@pytest.mark.slow
def test_every_encoding_and_locality_counts_as_computed_with_its_caches():
    """Without what is cached over images, and by the plan that the values of a decay give: 1200 tokens have several."""
    sizes = {"patch_size": 4, "in_channels": 1, "num_classes": 3, "width": 12, "depth": 1, "num_heads": 1}
    features = {"feature_map": "arc-cosine", "feature_options": {"num_features": 8}}
    cases = [({"encoding": name}, (16, 24)) for name in ENCODINGS]
    cases += [({"locality": name}, (120, 160)) for name in LOCALITIES]
    for case, size in cases:
        vit = ViT(ViTConfig(image_size=[16, 24], **sizes, **features, **case))
        folded, images = fold(vit), torch.randn(1, 1, *size)
        with torch.inference_mode(), folded.cached():
            folded(images)
            with FlopCounterMode(display=False) as counter:
                folded(images)
        assert multiplications(vit, size) == counter.get_total_flops() // 2, (case, size)


@pytest.mark.slow
def test_cost_of_checkpoints(tmp_path, capsys):
    paths = [save(tmp_path / f"linear-seed{seed}", replace(CONFIG, seed=seed)) for seed in (0, 1)]
    paths.append(save(tmp_path / "softmax-seed0", replace(CONFIG, attention="softmax", feature_options={})))
    options = ["--resolutions", "60", "84", "--images", "16", "--rounds", "5", "--device", "cpu"]
    main(["cost", "--checkpoint", *map(str, paths), *options])
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
    assert [float(row["relative to the first"]) for row in rows if row["model"] == "linear-seed0"] == [1, 1]
    assert float(rows[3]["GMACs"]) > float(rows[0]["GMACs"])
    assert "| linear, mean of 2 seeds |" in capsys.readouterr().out
    assert (tmp_path / "results" / "cost.png").stat().st_size > 5000
