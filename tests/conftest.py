"""Fixtures of all tests: a seed for each, small grids, and a finished training run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from performer_string.bias import base
from tests.helpers.training import TINY

if not torch.cuda.is_available():  # before anything imports Triton: its kernels then run on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_token_is_few(monkeypatch) -> None:
    """Sums over offsets go the way of long sequences on the small grids of the tests too."""
    monkeypatch.setattr(base, "MAX_DENSE_TOKENS", 0)


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
