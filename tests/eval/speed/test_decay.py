"""What a distance decay costs: regimes, errors within their bounds, and decays that are made to be wrong."""

from __future__ import annotations

import pytest
import torch

from eval.cli import main, parse_arguments
from eval.speed import decay
from performer_string import LOCALITIES
from performer_string.ops.layout import TokenLayout
from tests.helpers.checkpoints import read

FOCUSING = ["--features", "8", "--head-dim", "4", "--heads", "2", "--rounds", "5", "--sigmas", "1", "8"]


@pytest.mark.slow
@pytest.mark.usefixtures("over_grid")
def test_decays_of_several_lengths(tmp_path, capsys):
    main(["decay", *FOCUSING, "--sides", "12", "24", "--exact-up-to", "144", "--backward", "--out", str(tmp_path)])
    rows = read(tmp_path / "decay.csv")[1]
    names = ["plain", "sigma 1", "sigma 1, exact", "sigma 8", "sigma 8, exact", "plain", "sigma 1", "sigma 8"]
    assert [row["attention"] for row in rows] == names
    assert {row["regime"] for row in rows if "exact" not in row["attention"]} == {"", "window", "grid"}
    for row in rows:
        assert float(row["error"]) <= {"window": 1e-3, "grid": 0.03}.get(row["regime"], 0.0)
        assert float(row["peak MiB"]) > 0
    assert all(float(row["to plain"]) == 1 for row in rows if row["attention"] == "plain")
    assert "| sigma 8, exact" in capsys.readouterr().out


def test_added_decay(tmp_path, monkeypatch):
    monkeypatch.setitem(LOCALITIES, "wide", LOCALITIES["gaussian"])
    main(["decay", *FOCUSING, "--sides", "3", "--locality", "wide", "--out", str(tmp_path)])
    assert len(read(tmp_path / "decay.csv")[1]) == 5


def test_several_localities_in_one_run(tmp_path):
    """A window and the exact sum by blocks, beside attention without a decay."""
    arguments = ["--sides", "40", "--locality", "exponential", "exponential-l1", "--normalised", "--exact-up-to", "0"]
    main(["decay", *FOCUSING[:-3], "--sigmas", "2", *arguments, "--out", str(tmp_path)])
    rows = read(tmp_path / "decay.csv")[1]
    assert [row["attention"] for row in rows] == ["plain", "exponential, sigma 2", "exponential-l1, sigma 2"]
    assert [row["regime"] for row in rows] == ["", "window", "blocks"]
    assert float(rows[2]["error"]) < 1e-4


def test_wrong_decay_has_no_speed(tmp_path, monkeypatch, capsys):
    right = decay.DistanceDecay.attend
    monkeypatch.setattr(decay.DistanceDecay, "attend", lambda *args: 1.05 * right(*args))
    with pytest.raises(SystemExit):
        main(["decay", *FOCUSING, "--sides", "12", "--out", str(tmp_path)])
    assert "above its bound of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_wrong_gradient_has_no_speed(tmp_path, monkeypatch, capsys):
    right = decay.DistanceDecay.attend

    def steeper(*args):
        out = right(*args)
        return out.detach() + 1.1 * (out - out.detach())

    monkeypatch.setattr(decay.DistanceDecay, "attend", steeper)
    arguments = ["decay", *FOCUSING, "--sides", "12", "--exact-up-to", "0", "--out", str(tmp_path)]
    main(arguments)
    with pytest.raises(SystemExit):
        main([*arguments, "--backward"])
    assert "above its bound of" in capsys.readouterr().err


def test_timed_calls_have_a_backward_pass():
    options = parse_arguments(["decay", *FOCUSING, "--backward"])
    attentions = decay.AttentionsAtLength(options, 6, torch.device("cpu"))
    for call in attentions.calls.values():
        attentions.q.grad = None
        call()
        assert attentions.q.grad.abs().max() > 0


@pytest.mark.usefixtures("over_grid")
def test_exact_attention_is_by_dense_weights():
    locality = decay.build_locality("gaussian", num_heads=2)
    layout = TokenLayout(decay.grid_positions((6, 6)))
    assert locality.grid_of(layout) is not None
    assert decay.DenseBias(locality).grid_of(layout) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--locality", "gausian"], "Did you mean 'gaussian'"),
        (["--rounds", "3"], "a number of 5 or more is needed here, not '3'"),
        (["--sides", "1"], "2 tokens or more along a side, not 1"),
        (["--sigmas", "0"], "--sigmas must be positive, not 0"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["decay", *arguments])
    assert message in capsys.readouterr().err
