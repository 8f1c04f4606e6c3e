"""Images a second of each recipe, beside a plain ViT and performer-pytorch."""

from __future__ import annotations

import pytest

from eval.cli import main
from eval.speed import recipes
from performer_string import ViT
from tests.helpers.checkpoints import read

pytest.importorskip("timm")
pytest.importorskip("performer_pytorch")


def timed(calls, rounds, device):
    """Take a step of each model, and return times that tell the models apart."""
    for call in calls.values():
        call()
    return {name: [1.0 + number, 2.0 + 2 * number] for number, name in enumerate(calls)}


def test_recipes_beside_both_models(tmp_path, monkeypatch, capsys):
    """Of a classifier, of pixels and of videos, where there is no plain ViT for the last two."""
    monkeypatch.setattr(recipes, "time_in_turn", timed)
    names = ["mnist", "segment", "moving-arrow"]
    options = ["--batch-size", "1", "--dtype", "bfloat16", "--rounds", "5", "--device", "cpu"]
    main(["recipes", "--recipes", *names, *options, "--out", str(tmp_path)])
    rows = read(tmp_path / "recipes.csv")[1]
    assert [row["recipe"] for row in rows] == names
    assert [row["tokens"] for row in rows] == ["49", "144", "50"]
    assert [row["to plain"] for row in rows] == ["0.5", "", ""]
    assert rows[0]["performer-pytorch to plain"] == "1.5"
    assert all(row["performer-pytorch"] for row in rows)
    assert (tmp_path / "recipes.png").is_file()
    with pytest.raises(SystemExit):
        main(["recipes", "--recipes", "mnist", "--longest", "0", "--device", "cpu", "--out", str(tmp_path / "none")])
    assert "raise it, or lower --batch-size" in capsys.readouterr().err


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_models_beside_a_recipe_have_its_sizes(name, monkeypatch):
    """Of every recipe, with one narrow layer."""
    config, batch = recipes.read_recipe(name)
    assert batch > 0
    heads = config.num_heads
    config.variant, config.depth, config.width = None, 1, 16 * heads
    config.attention = "softmax" if isinstance(config.attention, list) else config.attention
    own, plain, performer = ViT(config), recipes.plain_vit(ViT(config)), recipes.performer_vit(config)
    assert str(own.head) == str(performer.head)
    if plain is not None:
        assert str(plain.head) == str(own.head)
        assert plain.patch_embed.num_patches == own.train_grid[0] * own.train_grid[1]


def test_files_of_one_name_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "time_in_turn", timed)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(recipes.RECIPES["mnist"].read_text())
    monkeypatch.chdir(tmp_path)
    main(["recipes", "--recipes", "a/mine.yaml", "b/mine.yaml", "--batch-size", "1", "--out", "."])
    assert [row["recipe"] for row in read(tmp_path / "recipes.csv")[1]] == ["a/mine", "b/mine"]


def test_unknown_recipes_and_other_files(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("data: {source: mnist}\n")
    for name, expected in (("mnits", "mnist"), (str(tmp_path / "mine.yaml"), "is no recipe")):
        with pytest.raises(SystemExit):
            main(["recipes", "--recipes", name, "--out", str(tmp_path)])
        assert expected in capsys.readouterr().err
