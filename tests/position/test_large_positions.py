"""Positions far out: angles are computed in float64, so that scores keep their digits."""

import copy

import pytest
import torch

from performer_string import build_encoding

NAMES = ["rope", "rope-mixed", "circulant-string", "cayley-string", "reflection-string", "liere"]


@pytest.mark.parametrize("name", NAMES)
def test_scores_a_million_tokens_out(name):
    encoding = build_encoding(name, head_dim=16, num_heads=2, coord_dim=1)
    q, k = torch.randn(2, 1, 2, 64, 16)
    positions = torch.arange(64.0)[:, None]

    def scores(start: float) -> torch.Tensor:
        rotation = encoding(positions + start)
        return rotation.rotate(q) @ rotation.rotate(k).mT

    torch.testing.assert_close(scores(1e6), scores(0.0), rtol=1e-5, atol=1e-4)


def test_sinusoidal_embedding_a_million_tokens_out():
    encoding = build_encoding("sinusoidal", head_dim=16, num_heads=2, coord_dim=1)
    positions = torch.arange(64.0)[:, None] + 1e6
    exact = encoding.embedding(positions.double())
    torch.testing.assert_close(encoding.embedding(positions).double(), exact, rtol=0, atol=1e-6)
    assert encoding.embedding(positions).dtype == torch.float32


def test_generators_that_do_not_commute_a_million_tokens_out():
    """Vectors that LieRE has rotated over two axes, and gradients of its generators, as in float64."""
    torch.manual_seed(0)
    encoding, results = build_encoding("liere", head_dim=8, num_heads=2, coord_dim=2), []
    q, weights, positions = *torch.randn(2, 1, 2, 4, 8), torch.randint(0, 8, (4, 2)) + 1e6
    for dtype in (torch.float32, torch.float64):
        each = copy.deepcopy(encoding).to(dtype)
        rotated = each(positions.to(dtype)).rotate(q.to(dtype))
        (rotated * weights.to(dtype)).sum().backward()
        results.append((rotated.detach().double(), each.entries.grad.double()))
    (rotated, gradient), (exact, exact_gradient) = results
    torch.testing.assert_close(rotated, exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, exact_gradient, rtol=0, atol=1e-5 * float(exact_gradient.abs().max()))


@pytest.mark.parametrize("name", [*NAMES, "pate-so2", "pate-so3", "pate-so4"])
def test_integers_beyond_float32_are_exact(name):
    """Time stamps: float32 has no odd numbers from 2^24 on."""
    encoding = build_encoding(name, head_dim=24, num_heads=2, coord_dim=1)
    positions, q = torch.arange(2**24, 2**24 + 8)[:, None], torch.randn(1, 2, 8, 24)
    expected = encoding(positions.double()).rotate(q)
    torch.testing.assert_close(encoding(positions).rotate(q), expected, rtol=1e-5, atol=1e-5)


def test_sinusoidal_embedding_of_integers_beyond_float32():
    encoding = build_encoding("sinusoidal", head_dim=16, num_heads=2, coord_dim=1)
    positions = torch.arange(2**24, 2**24 + 8)[:, None]
    embedding = encoding.embedding(positions)
    assert embedding.dtype == torch.float32
    torch.testing.assert_close(embedding.double(), encoding.embedding(positions.double()), rtol=0, atol=1e-6)
