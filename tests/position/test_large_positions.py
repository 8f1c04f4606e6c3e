"""Positions far out: angles are computed in float64, so that scores keep their digits."""

import pytest
import torch

from performer_string import build_encoding


@pytest.mark.parametrize("name", ["rope", "rope-mixed", "circulant-string", "cayley-string", "reflection-string"])
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
