"""The Cayley matrix of the whole width, against the equations of its source."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.testing import assert_close

from eval.papers.wide_cayley import WideCayley
from performer_string import ENCODINGS, ViT, ViTConfig
from performer_string.position.base import Sizes

NAME = "wide-cayley"
ENCODINGS.pop(NAME, None)  # importing the module adds it, and the tests of all encodings are collected after this one
sys.modules.pop("eval.papers.wide_cayley", None)

SIZES = Sizes(head_dim=6, num_heads=2, coord_dim=2, grid=(4, 4), layers=2)


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setitem(ENCODINGS, NAME, WideCayley)


def scores(rotation, q, k):
    return rotation.rotate(q) @ rotation.rotate(k).mT


@pytest.mark.parametrize("coord_dim", [1, 2])
def test_the_whole_width_is_rotated_and_multiplied_by_u(coord_dim):
    """Planes are pairs of neighbours in the source, and halves of each head here: the same up to their order."""
    sizes = Sizes(head_dim=6, num_heads=2, coord_dim=coord_dim, grid=(4, 4)[:coord_dim], layers=2)
    encoding, positions = WideCayley(sizes, init_std=1.0).double(), torch.randn(7, coord_dim, dtype=torch.float64)
    q = torch.randn(3, 2, 7, 6, dtype=torch.float64)
    steps = [100 ** -(t / (6 // coord_dim)) for t in range(6 // coord_dim)]  # of 12 dimensions, for each axis
    angles = torch.stack([omega * positions[:, axis] for omega in steps for axis in range(coord_dim)], dim=-1)
    pairs = torch.stack([q[..., :3], q[..., 3:]], dim=-1)  # (q_j, q_(j + 3)) of each head, as neighbours
    pairs = torch.view_as_complex(pairs).transpose(1, 2).flatten(2)  # [B, N, D / 2], the planes of both heads
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).unflatten(2, (2, 3))
    rotated = turned.movedim(-1, -2).flatten(2)  # [B, N, D], in halves again
    for layer, rotation in enumerate(encoding.by_layer(positions)):
        s, eye = encoding.generator.skew()[layer], torch.eye(12, dtype=torch.float64)
        u = (eye - s) @ torch.linalg.inv(eye + s)
        expected = (rotated @ u.T).reshape(3, 7, 2, 6).transpose(1, 2)
        assert_close(rotation.rotate(q), expected)
        assert_close(rotation.unrotate(rotation.rotate(q)), q)


@pytest.mark.parametrize("init_std", [0.0, 1.0])
def test_scores_of_a_head_are_relative_only_without_u(init_std):
    """The sum over heads is relative with any U, which cancels in it."""
    encoding, positions = WideCayley(SIZES, init_std=init_std).double(), torch.randn(7, 2, dtype=torch.float64)
    q, k = torch.randn(2, 1, 2, 7, 6, dtype=torch.float64)
    before, after = (scores(encoding.by_layer(r)[0], q, k) for r in (positions, positions + 3.37))
    assert_close(before.sum(1), after.sum(1))
    change = (before - after).abs().max()
    assert change > 1e-2 if init_std else change < 1e-12


def test_models_train_with_it_in_linear_and_exact_attention():
    for attention in ("softmax", "linear"):
        config = ViTConfig(
            image_size=8, patch_size=4, width=12, depth=2, num_heads=2, num_classes=3, encoding="wide-cayley",
            attention=attention,
        )  # fmt: skip
        model = ViT(config)
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        assert model.encoding.generator.entries.grad.abs().min() > 0, attention
