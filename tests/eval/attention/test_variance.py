"""One draw of random features: closed forms against independent draws, and weights against their limit."""

from __future__ import annotations

import argparse
import math

import pytest
import torch

from eval.attention import variance
from eval.cli import main, parse_arguments
from performer_string import FEATURE_MAPS
from performer_string.feature_maps import RandomFeatures
from tests.helpers.checkpoints import read

SMALL = ["--features", "16", "--head-dim", "4", "--draws", "48", "--others", "5"]


def options(*arguments: str) -> argparse.Namespace:
    return parse_arguments(["variance", *SMALL, *arguments])


class Cosines(RandomFeatures):
    """A map that a user has added, without a kernel."""

    def queries(self, q):
        return self.project(q).cos()


def test_variance_of_all_maps(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(FEATURE_MAPS, "cosines", Cosines)
    main(["variance", *SMALL, "--out", str(tmp_path)])
    _, rows = read(tmp_path / "variance.csv")
    assert [r["angle"] for r in rows if r["map"] == "favor+"] == ["0.0", "30.0", "60.0"]
    assert {r["map"] for r in rows} == {
        "favor+",
        "favor+hyperbolic",
        *(f"arc-cosine, order {p}" for p in (1, 2, 4, 8, 16)),
    }
    assert all(0 <= float(r["lowest twentieth"]) <= float(r["weight"]) <= 1 for r in rows)
    sharp = [float(r["weight in the limit"]) for r in rows if r["angle"] == "0.0" and "arc-cosine" in r["map"]]
    assert sharp == sorted(sharp)
    assert (tmp_path / "variance.png").exists()
    printed, said = capsys.readouterr()
    assert "weight of a key at 0 degrees" in printed
    assert "cosines is left out: it has no log_kernel" in said
    assert "polynomial is left out: it has no random features." in said


@pytest.mark.parametrize("title", ["favor+", "favor+hyperbolic", "arc-cosine, order 1", "arc-cosine, order 2"])
def test_closed_forms_are_those_of_independent_draws(title):
    """Over rows that are drawn one by one, and not in orthogonal blocks; each head is a draw."""
    angle = 50.0
    q, k = variance.query_and_key(angle, options("--logit", "0.3"))
    phi = variance.build_map(title, 8, 100_000, 4)
    rng = torch.Generator().manual_seed(0)
    phi.projection.copy_(torch.randn(phi.projection.shape, generator=rng, dtype=torch.float64))
    ratio = (phi.queries(q) * phi.keys(k)).sum(-1).flatten() / math.exp(float(phi.log_kernel(q, k)))
    assert float(ratio.mean()) == pytest.approx(1, abs=4 * float(ratio.std()) / len(ratio) ** 0.5)
    assert float(ratio.std()) == pytest.approx(variance.independent_deviation(phi, q, k), rel=0.05)


def test_orthogonal_draws_and_the_limit_of_weights():
    (row,) = measured("arc-cosine, order 1", 64, "--angles", "20", "--draws", "512")
    assert 0.5 < row["relative error"] / row["with independent draws"] < 1
    assert row["weight"] == pytest.approx(row["weight in the limit"], rel=0.05)
    (few,) = measured("arc-cosine, order 8", 8, "--angles", "20", "--draws", "512")
    assert few["weight"] < 0.8 * few["weight in the limit"]


def measured(title: str, features: int, *arguments: str) -> list[dict[str, float]]:
    case = variance.Case(title, features, options(*arguments))
    return list(case.rows(case.draw(0, 512)))
