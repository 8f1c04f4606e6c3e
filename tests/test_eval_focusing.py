"""The report on what locality focusing costs."""

from __future__ import annotations

import argparse

import pytest
import torch

from eval import focusing
from eval.__main__ import main
from performer_string import LOCALITIES
from tests.helpers.checkpoints import read

FOCUSING = ["--features", "8", "--head-dim", "4", "--heads", "2", "--rounds", "5", "--sigmas", "1", "8"]


def test_the_focusing_report(tmp_path, capsys):
    main(["focusing", *FOCUSING, "--sides", "12", "24", "--exact-up-to", "144", "--backward", "--out", str(tmp_path)])
    found = read(tmp_path / "focusing.csv")[1]
    names = ["plain", "sigma 1", "sigma 1, exact", "sigma 8", "sigma 8, exact", "plain", "sigma 1", "sigma 8"]
    assert [row["attention"] for row in found] == names
    assert {row["regime"] for row in found if "exact" not in row["attention"]} == {"", "window", "grid"}
    for row in found:
        assert float(row["error"]) <= {"window": 1e-3, "grid": 0.03}.get(row["regime"], 0.0)
        assert float(row["peak MiB"]) > 0
    assert all(float(row["to plain"]) == 1 for row in found if row["attention"] == "plain")
    assert "| sigma 8, exact" in capsys.readouterr().out


def test_a_decay_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(LOCALITIES, "wide", LOCALITIES["gaussian"])
    main(["focusing", *FOCUSING, "--sides", "3", "--locality", "wide", "--out", str(tmp_path)])
    assert len(read(tmp_path / "focusing.csv")[1]) == 5


def test_no_speed_for_a_focusing_that_is_off(tmp_path, monkeypatch, capsys):
    right = focusing.DistanceDecay.numerator
    monkeypatch.setattr(focusing.DistanceDecay, "numerator", lambda *args: 1.05 * right(*args))
    with pytest.raises(SystemExit):
        main(["focusing", *FOCUSING, "--sides", "12", "--out", str(tmp_path)])
    assert "above its bound of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_speed_for_a_focusing_whose_gradient_is_off(tmp_path, monkeypatch, capsys):
    right = focusing.DistanceDecay.numerator

    def steeper(*args):
        out = right(*args)
        return out.detach() + 1.1 * (out - out.detach())

    monkeypatch.setattr(focusing.DistanceDecay, "numerator", steeper)
    arguments = ["focusing", *FOCUSING, "--sides", "12", "--exact-up-to", "0", "--out", str(tmp_path)]
    main(arguments)
    with pytest.raises(SystemExit):
        main([*arguments, "--backward"])
    assert "above its bound of" in capsys.readouterr().err


def test_what_is_timed_with_backward_has_a_backward_pass():
    parser = argparse.ArgumentParser()
    focusing.add_arguments(parser)
    contest = focusing.Contest(parser.parse_args([*FOCUSING, "--backward"]), 6, torch.device("cpu"))
    for call in contest.calls.values():
        contest.q.grad = None
        call()
        assert contest.q.grad.abs().max() > 0


def test_the_exponent_of_a_power_law():
    assert focusing.exponent([1, 2, 4], [3, 3 * 2**1.5, 3 * 4**1.5]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--locality", "gausian"], "Did you mean 'gaussian'"),
        (["--rounds", "3"], "at least 5 rounds, not 3"),
        (["--sides", "1"], "2 tokens or more along a side, not 1"),
        (["--sigmas", "0"], "--sigmas have to be positive, not 0"),
    ],
)
def test_bad_arguments_of_focusing(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["focusing", *arguments])
    assert message in capsys.readouterr().err
