"""Fixtures of all tests: a seed for each, sums over small grids, and a finished training run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from performer_string.bias import RelativeBias
from tests.helpers.training import TINY
from train.utils import progress

if not torch.cuda.is_available():  # before anything imports Triton: its kernels then run on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch) -> None:
    """Write no lines of progress, which a slow machine alone would add to the output."""
    monkeypatch.setattr(progress, "FIRST", math.inf)


@pytest.fixture
def over_grid(monkeypatch) -> Iterator[None]:
    """Sum a relative bias over the grid of few tokens too, as for many, and fail where no such sum has run."""
    find, grids = RelativeBias.grid_of, []

    def record(self, layout):
        grids.append(find(self, layout))
        return grids[-1]

    monkeypatch.setattr(RelativeBias, "max_dense_tokens", 0)
    monkeypatch.setattr(RelativeBias, "grid_of", record)
    yield
    assert any(grid is not None for grid in grids), "no sum went over a grid"


@pytest.fixture(params=["N x N", "over the grid"])
def both_sums(request) -> None:
    """Run a test with a relative bias by matrices, as few tokens are summed, and by the sum over their grid."""
    if request.param == "over the grid":
        request.getfixturevalue("over_grid")


@pytest.fixture
def qk() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 2, 7, 12, dtype=torch.float64).unbind(0)


@pytest.fixture(scope="session")
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def whole(config, tmp_path_factory) -> Path:
    """A run left alone."""
    from train import cli  # after Triton's switch above

    run = tmp_path_factory.mktemp("runs") / "whole"
    cli.run(["fit", "--config", str(config), "--run_dir", str(run)])
    return run
