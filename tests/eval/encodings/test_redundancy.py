"""Which encodings are the same function class: what the mathematics says must come out of the fit."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from eval.cli import main
from eval.encodings import redundancy
from tests.helpers.checkpoints import read


@pytest.mark.slow
def test_redundancy_of_known_families(tmp_path, monkeypatch):
    """What the mathematics says must come out of the fit, and what is different must not."""
    families = ["rope", "rope-mixed", "cayley-string", "cayley-string, block-diagonal", "circulant-string, block 4"]
    families += ["reflection-string", "pate-so3", "pate-so4"]
    monkeypatch.setattr(redundancy, "FAMILIES", {name: redundancy.FAMILIES[name] for name in families})
    main(["redundancy", "--out", str(tmp_path)])
    covers = {(row["fitted"], row["target"]): row["covers"] == "True" for row in read(tmp_path / "redundancy.csv")[1]}
    full = ["rope-mixed", "cayley-string", "cayley-string, block-diagonal", "reflection-string"]
    assert all(covers[fitted, target] for fitted in full for target in families)
    assert [target for target in families if covers["rope", target]] == ["rope"]
    assert not any(covers[fitted, "rope-mixed"] for fitted in ("circulant-string, block 4", "pate-so3", "pate-so4"))
    assert covers["pate-so3", "circulant-string, block 4"]  # more planes than the target needs
    assert covers["rope-mixed, Cayley after it", "rope-mixed"]


def test_plane_of_the_opposite_rotation_is_the_same():
    omega = torch.tensor([[1.0, 0.1, 3.0], [0.5, 2.0, 0.2]], dtype=torch.float64)
    order, sign = redundancy.match(omega, -omega[:, [2, 0, 1]])
    assert order.tolist() == [1, 2, 0]
    assert sign.tolist() == [-1.0, -1.0, -1.0]


def test_best_of_the_starts_counts(monkeypatch):
    monkeypatch.setattr(redundancy, "FAMILIES", {"rope": redundancy.FAMILIES["rope"]})
    errors = iter([0.3, 0.0, 0.2, 0.1])
    monkeypatch.setattr(redundancy, "error_left", lambda *_: next(errors))
    row = next(redundancy.evaluate(Namespace(head_dim=12, seed=0), torch.device("cpu")))
    assert (row["error"], row["covers"]) == (0.0, True)
