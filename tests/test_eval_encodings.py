"""The reports on encodings: what a translation changes, which are the same, what each costs."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eval import latency, moves, redundancy
from eval.__main__ import main
from performer_string import ENCODINGS, ViT, ViTConfig
from performer_string.feature_maps.favor import PositiveFeatures
from performer_string.feature_maps.polynomial import PolynomialFeatures
from performer_string.position import Encoding, SeparableEncoding
from performer_string.position.liere import LieRE
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.encodings import make

CPU = torch.device("cpu")


def invariance_rows(tmp_path: Path) -> list[dict[str, str]]:
    main(["invariance", "--out", str(tmp_path), "--head-dim", "12"])
    return read(tmp_path / "invariance.csv")[1]


def test_the_invariance_report_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(moves, "DRAWS", (1, 16, 64))
    found = invariance_rows(tmp_path)
    assert {row["name"].split()[0] for row in found if row["part"] == "scores"} >= set(ENCODINGS)
    assert not [row for row in found if row["holds"] == "False"]
    assert [row for row in found if row["expected"] == "fails by design"]
    for row in found:
        if row["quantity"] == "bias in standard errors":
            assert float(row["value"]) < 4.5
    spread = {row["quantity"]: float(row["value"]) for row in found if row["name"] == "arc-cosine, order 1"}
    assert spread["64 draws"] == pytest.approx(spread["1 draws"] / 8, rel=0.5)


def test_the_invariance_report_sees_a_broken_encoding(tmp_path, monkeypatch, capsys):
    """A rotation by the square of the position has to be found out."""
    monkeypatch.setattr(moves, "DRAWS", (1, 4))
    forward = SeparableEncoding.forward
    monkeypatch.setattr(SeparableEncoding, "forward", lambda self, positions: forward(self, positions.square()))
    found = invariance_rows(tmp_path)
    assert [row for row in found if row["name"] == "circulant-string" and row["holds"] == "False"]
    assert "DOES NOT HOLD" in capsys.readouterr().out


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
        ({"encoding": "rope", "values": "connection"}, "exact"),
        ({"encoding": "rope", "values": "connection", "value_options": {"encoding": "liere"}}, "fails by design"),
        ({"encoding": "none", "attention": "linear"}, "exact"),
        ({"encoding": "liere", "attention": "linear"}, "fails by design"),
    ],
    ids=str,
)
def test_the_invariance_report_of_a_checkpoint(tmp_path, monkeypatch, capsys, changes, expected):
    monkeypatch.setattr(moves, "DRAWS", (1, 4))
    path = save(tmp_path / "one", replace(CONFIG, **{"attention": "softmax", **changes}))
    main(["invariance", "--checkpoint", str(path), "--out", str(tmp_path)])
    rows = read(tmp_path / "invariance.csv")[1]
    assert [(row["name"], row["expected"], row["holds"]) for row in rows] == [(str(path), expected, "True")]


class Golden(SeparableEncoding):
    """An encoding of one's own with nothing but its frequencies, for images only."""

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


def test_the_invariance_report_of_encodings_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(moves, "DRAWS", (1, 4))
    own = {"golden": Golden, "flat": Flat, "whole": Whole, "bare": Bare}
    monkeypatch.setattr(moves, "ENCODINGS", own)
    for name, family in own.items():
        monkeypatch.setitem(ENCODINGS, name, family)
    found, printed = invariance_rows(tmp_path), capsys.readouterr().out
    assert "golden is left out in 3-D: golden is for images only." in printed
    assert "flat is left out in 3-D: Flat.frequencies() has to be" in printed
    (line,) = (line for line in printed.splitlines() if "| bare " in line)
    assert "not known without generators" in line
    mine = {(row["part"], row["name"], row["expected"]) for row in found if row["name"] in own}
    assert mine >= {("scores", "golden", "exact"), ("scores", "flat", "exact"), ("scores", "whole", "fails by design")}
    assert ("generators", "whole", "fails by design") in mine
    assert {kind for kind in mine if kind[1] == "bare"} == {("scores", "bare", "not known")}
    assert moves.expected_of(ViT(replace(CONFIG, encoding="bare", attention="softmax"))) == "not known"
    assert not [row for row in found if row["holds"] == "False"]


def test_a_feature_map_that_sees_more_than_inner_products_is_not_expected_to_be_invariant(monkeypatch):
    vit = ViT(replace(CONFIG, feature_map="polynomial", feature_options={}))
    assert moves.expected_of(vit) == "exact"
    monkeypatch.setattr(PolynomialFeatures, "isotropic", False)
    assert moves.expected_of(vit) == "fails by design"


@pytest.mark.parametrize(("change", "holds"), [(1e-8, False), (1e-12, True)])
def test_exact_is_what_float64_leaves_of_zero(change, holds):
    assert moves.row("scores", "rope", "move", change, "exact")["holds"] is holds


@pytest.mark.parametrize("broken", [0, 1])
def test_a_move_along_an_axis_is_one_along_that_axis(broken):
    encoding = make(("rope-mixed", {}))
    forward = encoding.forward
    encoding.forward = lambda r: forward(torch.where(torch.arange(2) == broken, r.square(), r))
    with torch.no_grad():
        found = [moves.change_of_scores(encoding, axis) for axis in range(2)]
    assert found[broken] > 1e-3
    assert found[1 - broken] < 1e-9


def test_a_bias_of_the_draws_shows_as_many_standard_errors(monkeypatch):
    """Of queries that are 10 % too large after the move."""
    monkeypatch.setattr(moves, "DRAWS", (1, 64))
    monkeypatch.setattr(moves, "MAPS", {"favor+": ("favor+", {})})
    queries, factors = PositiveFeatures.queries, iter([1.0, 1.1])
    monkeypatch.setattr(PositiveFeatures, "keys", queries)
    monkeypatch.setattr(PositiveFeatures, "queries", lambda self, q: queries(self, q) * next(factors))
    errors = {row["quantity"]: row["value"] for row in moves.of_features(12)}
    assert errors["bias in standard errors"] > 4.5


def test_the_invariance_report_names_a_bad_width(capsys):
    with pytest.raises(SystemExit):
        main(["invariance", "--head-dim", "16"])
    assert "divisible by 12, for blocks of 2, 3 and 4, not 16" in capsys.readouterr().err


def test_the_redundancy_report_finds_what_is_the_same(tmp_path, monkeypatch):
    """What the mathematics says has to come out of the fit, and what is different must not."""
    kept = ["rope", "rope-mixed", "cayley-string", "cayley-string, block-diagonal", "circulant-string, block 4"]
    kept += ["reflection-string", "pate-so3", "pate-so4"]
    monkeypatch.setattr(redundancy, "FAMILIES", {name: redundancy.FAMILIES[name] for name in kept})
    main(["redundancy", "--out", str(tmp_path)])
    covers = {(row["fitted"], row["target"]): row["covers"] == "True" for row in read(tmp_path / "redundancy.csv")[1]}
    full = ["rope-mixed", "cayley-string", "cayley-string, block-diagonal", "reflection-string"]
    assert all(covers[fitted, target] for fitted in full for target in kept)
    assert [target for target in kept if covers["rope", target]] == ["rope"]
    assert not any(covers[fitted, "rope-mixed"] for fitted in ("circulant-string, block 4", "pate-so3", "pate-so4"))
    assert covers["pate-so3", "circulant-string, block 4"]  # more planes than the target needs
    assert covers["rope-mixed, Cayley after it", "rope-mixed"]


def test_a_plane_that_turns_the_other_way_is_the_same_plane():
    """Seen from behind."""
    omega = torch.tensor([[1.0, 0.1, 3.0], [0.5, 2.0, 0.2]], dtype=torch.float64)
    order, sign = redundancy.match(omega, -omega[:, [2, 0, 1]])
    assert order.tolist() == [1, 2, 0]
    assert sign.tolist() == [-1.0, -1.0, -1.0]


def test_the_best_of_the_starts_counts(monkeypatch):
    monkeypatch.setattr(redundancy, "FAMILIES", {"rope": redundancy.FAMILIES["rope"]})
    tries = iter([0.3, 0.0, 0.2, 0.1])
    monkeypatch.setattr(redundancy, "error_left", lambda *_: next(tries))
    found = next(redundancy.rows(Namespace(head_dim=12, seed=0), CPU))
    assert (found["error"], found["covers"]) == (0.0, True)


def test_a_ratio_is_to_the_rope_measured_beside_it(monkeypatch):
    """Not to the one measured for itself: a machine's speed drifts."""
    seconds = {("rope", True): 1.0, ("rope", False): 1.0, ("liere", True): 6.0, ("liere", False): 2.0}

    def in_turn(calls, rounds, device):
        return {key: [seconds[key[0], key[2]]] * rounds for key in calls}

    monkeypatch.setattr(latency, "in_turn", in_turn)
    sizes = {"variant": "micro", "image_size": 8, "patch_size": 4, "features": 8, "batch_size": 1}
    options = Namespace(encodings=["liere"], attention="linear", rounds=5, **sizes)
    row = list(latency.rows(options, CPU))[1]
    assert (row["encoding"], row["step to rope"], row["inference to rope"]) == ("liere", 3.0, 3.0)


def test_inference_is_that_of_a_folded_model_and_a_step_that_of_the_model_itself():
    config = ViTConfig(8, 4, variant="micro", encoding="cayley-string", feature_options={"num_features": 8})
    one = latency.Contestant(config, 1, CPU)
    assert one.folded.encoding.is_folded
    assert not one.model.encoding.is_folded
    assert one.model.training
    assert not one.folded.training


def test_the_latency_report_counts_parameters_and_names_what_it_leaves_out(tmp_path, capsys):
    small = ["--variant", "micro", "--image-size", "8", "--patch-size", "4", "--features", "8", "--batch-size", "1"]
    encodings = ["rope-mixed", "cayley-string", "circulant-string", "liere"]
    main(["latency", *small, "--rounds", "5", "--encodings", *encodings, "--out", str(tmp_path)])
    found = {row["encoding"]: row for row in read(tmp_path / "latency.csv")[1]}
    # 4 layers of 4 heads of 12: 12 frequencies a head, 66 entries of S, 10 coefficients, 2 x 66 entries of A
    expected = {"rope": 0, "rope-mixed": 192, "cayley-string": 192 + 1056, "circulant-string": 160, "liere": 2112}
    assert {name: int(row["of the encoding"]) for name, row in found.items()} == expected
    assert all(float(row[name]) > 0 for row in found.values() for name in ("step to rope", "inference to rope"))
    capsys.readouterr()
    main(
        ["latency", *small[2:], "--variant", "tiny", "--rounds", "5", "--encodings", "pate-so3", "--out", str(tmp_path)]
    )
    assert "pate-so3 is left out: pate-so3 turns blocks of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'"),
        (["--rounds", "3"], "a median needs at least 5 rounds, not 3"),
        (["--attention", "sofmax"], "Did you mean 'softmax'"),
    ],
)
def test_bad_arguments_of_latency(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["latency", *arguments])
    assert message in capsys.readouterr().err
