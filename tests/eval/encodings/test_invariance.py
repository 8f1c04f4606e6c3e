"""What a translation changes: encodings, feature maps and models, with some that are made to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eval.cli import main
from eval.encodings import translations
from eval.encodings.one_axis import measure_one_axis
from eval.encodings.reports import plot_invariance
from performer_string import ENCODINGS, FEATURE_MAPS, FeatureMap, ViT
from performer_string.feature_maps.favor import PositiveFeatures
from performer_string.feature_maps.polynomial import PolynomialFeatures
from performer_string.position import Encoding, SeparableEncoding
from performer_string.position.liere import LieRE
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.encodings import make_encoding
from train.data.module import ImageData
from train.data.moving_arrow import MovingArrowTask


def invariance_rows(tmp_path: Path) -> list[dict[str, str]]:
    main(["invariance", "--out", str(tmp_path), "--head-dim", "12"])
    return read(tmp_path / "invariance.csv")[1]


@pytest.mark.slow
def test_invariance_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(translations, "DRAWS", (1, 16, 64))
    found = invariance_rows(tmp_path)
    assert {row["name"].split()[0] for row in found if row["part"] == "scores"} >= set(ENCODINGS)
    assert not [row for row in found if row["holds"] == "False"]
    assert [row for row in found if row["expected"] == "fails by design"]
    for row in found:
        if row["quantity"] == "bias in standard errors":
            assert float(row["value"]) < 4.5
    spread = {row["quantity"]: float(row["value"]) for row in found if row["name"] == "arc-cosine, order 1"}
    assert spread["64 draws"] == pytest.approx(spread["1 draws"] / 8, rel=0.5)


@pytest.mark.slow
def test_invariance_of_a_broken_encoding(tmp_path, monkeypatch, capsys):
    """A rotation by the square of the position must be found out."""
    monkeypatch.setattr(translations, "DRAWS", (1, 4))
    forward = SeparableEncoding.forward
    monkeypatch.setattr(SeparableEncoding, "forward", lambda self, positions: forward(self, positions.square()))
    found = invariance_rows(tmp_path)
    assert [row for row in found if row["name"] == "circulant-string" and row["holds"] == "False"]
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_liere_on_one_axis_is_rope_in_another_basis(monkeypatch):
    before = torch.get_rng_state()
    assert measure_one_axis(12)["holds"] is True
    assert torch.equal(torch.get_rng_state(), before), "other rows keep their numbers"
    forward = LieRE.forward
    monkeypatch.setattr(LieRE, "forward", lambda self, positions: forward(self, positions.square()))
    assert measure_one_axis(12)["holds"] is False


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoding": "cayley-string"}, "exact"),
        ({"encoding": "cayley-string", "registers": 1}, "fails by design"),
        ({"encoding": "none", "registers": 1}, "exact"),
        ({"encoding": "pate-so2", "encoding_options": {"conformal_scaling": 1.0}}, "fails by design"),
        ({"encoding": "rope-mixed", "values": "group-action"}, "fails by design"),
        ({"encoding": "liere", "encoding_options": {"block_size": 2}}, "exact"),
        ({"encoding": "liere", "centred": True, "registers": 1, "attention": "linear"}, "exact"),
        ({"encoding": "absolute", "centred": True}, "fails by design"),  # which is never centred
        ({"absolute_table": "linear", "centred": True}, "fails by design"),
        ({"encoding": "rope", "values": "connection"}, "exact"),
        ({"encoding": "rope", "values": "connection", "value_options": {"encoding": "liere"}}, "fails by design"),
        ({"encoding": "none", "attention": "linear"}, "exact"),
        ({"encoding": "liere", "attention": "linear"}, "fails by design"),
    ],
    ids=str,
)
def test_invariance_of_a_checkpoint(tmp_path, monkeypatch, capsys, changes, expected):
    monkeypatch.setattr(translations, "DRAWS", (1, 4))
    path = save(tmp_path / "one", replace(CONFIG, **{"attention": "softmax", **changes}))
    main(["invariance", "--checkpoint", str(path), "--out", str(tmp_path)])
    rows = read(tmp_path / "invariance.csv")[1]
    assert [(row["name"], row["expected"], row["holds"]) for row in rows] == [("one", expected, "True")]


def test_invariance_of_a_model_of_videos(tmp_path):
    config = replace(CONFIG, image_size=[4, 36, 36], patch_size=[2, 12, 12], encoding="rope", attention="softmax")
    data = ImageData("moving_arrow", size=[4, 36, 36], moving_arrow=MovingArrowTask(arrows=2, letters="A"))
    main(["invariance", str(save(tmp_path / "one", config, data)), "--out", str(tmp_path)])
    ((row,)) = read(tmp_path / "invariance.csv")[1]
    assert (row["name"], row["expected"], row["holds"]) == ("one", "exact", "True")


class Golden(SeparableEncoding):
    """An added encoding with nothing but its frequencies, for images only."""

    def __init__(self, sizes):
        super().__init__(sizes)
        if sizes.coord_dim != 2:
            raise ValueError("golden is for images only.")

    def frequencies(self):
        angles = 2.4 * torch.arange(self.head_dim // 2)
        return torch.stack([angles.sin(), angles.cos()]).expand(self.layers * self.num_heads, -1, -1)


class Flat(Golden):
    """One that is for images too, and does not say so."""

    def __init__(self, sizes):
        SeparableEncoding.__init__(self, sizes)


class Whole(LieRE):
    """Another one, which does not commute."""


class Bare(Encoding):
    """One that says nothing of its generators: rope in a wrapping."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.inner = ENCODINGS["rope"](sizes)

    def forward(self, positions):
        return self.inner(positions)


class Exponential(FeatureMap):
    """A map that acts on each entry, so that it sees rotations."""

    isotropic = False

    def __init__(self, head_dim: int, num_heads: int):
        super().__init__(head_dim, num_heads, num_features=head_dim)

    def queries(self, q):
        return q.exp()


@pytest.mark.parametrize("isotropic", [False, True])
def test_invariance_of_added_feature_maps(monkeypatch, isotropic):
    monkeypatch.setattr(translations, "MAPS", {})
    monkeypatch.setattr(Exponential, "isotropic", isotropic)
    monkeypatch.setitem(FEATURE_MAPS, "exponential", Exponential)
    (row,) = translations.measure_features(12)
    expected = "exact" if isotropic else "fails by design"
    assert (row["name"], row["expected"], row["holds"]) == ("exponential", expected, not isotropic)


@pytest.mark.slow
def test_invariance_of_added_encodings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translations, "DRAWS", (1, 4))
    own = {"golden": Golden, "flat": Flat, "whole": Whole, "bare": Bare}
    monkeypatch.setattr(translations, "ENCODINGS", own)
    for name, family in own.items():
        monkeypatch.setitem(ENCODINGS, name, family)
    found, (printed, said) = invariance_rows(tmp_path), capsys.readouterr()
    assert "golden is left out in 3-D: golden is for images only." in said
    assert "flat is left out in 3-D: Flat.frequencies() must be" in said
    (line,) = (line for line in printed.splitlines() if "| bare " in line)
    assert "not known without generators" in line
    mine = {(row["part"], row["name"], row["expected"]) for row in found if row["name"] in own}
    assert mine >= {("scores", "golden", "exact"), ("scores", "flat", "exact"), ("scores", "whole", "fails by design")}
    assert ("generators", "whole", "fails by design") in mine
    assert {kind for kind in mine if kind[1] == "bare"} == {("scores", "bare", "not known")}
    assert translations.expected_of_model(ViT(replace(CONFIG, encoding="bare", attention="softmax"))) == "not known"
    assert not [row for row in found if row["holds"] == "False"]


def test_invariance_of_an_anisotropic_feature_map(monkeypatch):
    vit = ViT(replace(CONFIG, feature_map="polynomial", feature_options={}))
    assert translations.expected_of_model(vit) == "exact"
    monkeypatch.setattr(PolynomialFeatures, "isotropic", False)
    assert translations.expected_of_model(vit) == "fails by design"


@pytest.mark.parametrize(("change", "holds"), [(1e-8, False), (1e-12, True)])
def test_exact_is_zero_up_to_rounding(change, holds):
    assert translations.make_row("scores", "rope", "move", change, "exact")["holds"] is holds


def test_legend_says_what_is_expected():
    """One draw of random features is not zero but for rounding, nor is an encoding whose generators are unknown."""
    row = {"part": "models", "quantity": "logits", "value": 0.1, "holds": ""}
    kinds = ("exact", "one draw", "not known")
    figure = plot_invariance([{**row, "name": kind, "expected": kind} for kind in kinds])
    heights = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert heights == {"zero but for rounding": [0], "not zero in one draw": [1], "not known": [2]}


@pytest.mark.parametrize("broken", [0, 1])
def test_translation_is_along_one_axis(broken):
    encoding = make_encoding("rope-mixed")
    forward = encoding.forward
    encoding.forward = lambda r: forward(torch.where(torch.arange(2) == broken, r.square(), r))
    with torch.no_grad():
        found = [translations.change_of_scores(encoding, axis) for axis in range(2)]
    assert found[broken] > 1e-3
    assert found[1 - broken] < 1e-9


def test_bias_of_draws_in_standard_errors(monkeypatch):
    """Of queries that are 10 % too large after the move."""
    monkeypatch.setattr(translations, "DRAWS", (1, 64))
    monkeypatch.setattr(translations, "MAPS", {"favor+": ("favor+", {})})
    queries, factors = PositiveFeatures.queries, iter([1.0, 1.1])
    monkeypatch.setattr(PositiveFeatures, "keys", queries)
    monkeypatch.setattr(PositiveFeatures, "queries", lambda self, q: queries(self, q) * next(factors))
    errors = {row["quantity"]: row["value"] for row in translations.measure_features(12)}
    assert errors["bias in standard errors"] > 4.5


def test_bad_width(capsys):
    with pytest.raises(SystemExit):
        main(["invariance", "--head-dim", "16"])
    assert "divisible by 12, for blocks of 2, 3 and 4, not 16" in capsys.readouterr().err
