"""Queries, keys, values and their context that do not fit each other, and derivatives that are not there."""

from __future__ import annotations

import pytest
import torch

from performer_string import (
    build_encoding,
    build_feature_map,
    build_locality,
    grid_positions,
    linear_attention,
    softmax_attention,
)

SHAPES = {
    "keys of one sample": ((4, 2, 10, 8), (1, 2, 10, 8), (1, 2, 10, 8)),
    "more samples of values": ((2, 2, 10, 8), (2, 2, 10, 8), (3, 2, 10, 8)),
    "longer values": ((2, 2, 10, 8), (2, 2, 10, 8), (2, 2, 15, 8)),
    "longer keys": ((2, 2, 10, 8), (2, 2, 15, 8), (2, 2, 10, 8)),
    "other heads": ((2, 2, 10, 8), (2, 1, 10, 8), (2, 1, 10, 8)),
    "wider keys": ((2, 2, 10, 8), (2, 2, 10, 9), (2, 2, 10, 8)),
    "three dimensions": ((2, 10, 8), (2, 10, 8), (2, 10, 8)),
}


def attend(kind, q, k, v, **given):
    if kind == "softmax":
        return softmax_attention(q, k, v, **given)
    options = {} if kind == "polynomial" else {"num_features": 16}
    return linear_attention(q, k, v, build_feature_map(kind, head_dim=8, num_heads=2, **options), **given)


@pytest.mark.parametrize("kind", ["favor+", "arc-cosine", "polynomial", "softmax"])
class TestAttention:
    @pytest.mark.parametrize("shapes", SHAPES.values(), ids=list(SHAPES))
    def test_queries_keys_and_values_that_do_not_fit(self, kind, shapes):
        """Chunks took the number of samples from one and wrote as many as of another."""
        with pytest.raises(ValueError, match=r"have to be \[B, H, N, d\], \[B, H, M, d\] and \[B, H, M, e\], not \["):
            attend(kind, *(torch.randn(shape) for shape in shapes))

    def test_whole_numbers(self, kind):
        """They were cut off in the output."""
        q = torch.ones(1, 2, 5, 8, dtype=torch.int64)
        with pytest.raises(TypeError, match=r"have to be floating-point, not torch.int64"):
            attend(kind, q, q, q)

    @pytest.mark.parametrize(
        ("head_dim", "positions", "message"),
        [
            (8, (3, 10, 2), r"of \(samples, heads\) \(3, 1\), and not of \(2, 2\)"),
            (8, (12, 2), "of 12 positions and not of 10"),
            (6, (10, 2), "of heads of width 6, and not of 8"),
        ],
    )
    def test_rotation_of_another_shape(self, kind, head_dim, positions, message):
        rotation = build_encoding("rope", head_dim=head_dim, num_heads=2)(torch.randn(positions))
        with pytest.raises(ValueError, match=message):
            attend(kind, *torch.randn(3, 2, 2, 10, 8), rotation=rotation)

    def test_encoding_in_place_of_its_rotation(self, kind):
        encoding = build_encoding("rope", head_dim=8, num_heads=2)
        with pytest.raises(TypeError, match=r"encoding\(positions\), not a RoPE"):
            attend(kind, *torch.randn(3, 2, 2, 10, 8), rotation=encoding)

    def test_locality_of_other_tokens(self, kind):
        given = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((2, 5))}
        q, k, v = torch.randn(3, 2, 2, 10, 8)
        with pytest.raises(ValueError, match="queries and keys of the same tokens, not 1 queries of 10 keys"):
            attend(kind, q[:, :, :1], k, v, **given)
        for num_prefix in (-1, 11):
            with pytest.raises(ValueError, match=f"between 0 and the number of tokens, 10, not {num_prefix}"):
                attend(kind, q, k, v, num_prefix=num_prefix, **given)

    @pytest.mark.parametrize("places", [{"positions": grid_positions((2, 5))}, {"num_prefix": 3}])
    def test_positions_without_a_use(self, kind, places):
        """They were ignored, as if attention had seen where tokens lie. Beside a rotation they may stay."""
        q, k, v = torch.randn(3, 2, 2, 10, 8)
        with pytest.raises(ValueError, match=r"without a locality: .* rotation=encoding\(positions\)"):
            attend(kind, q, k, v, **places)
        rotation = build_encoding("rope", head_dim=8, num_heads=2)(grid_positions((2, 5)))
        plain = attend(kind, q, k, v, rotation=rotation)
        torch.testing.assert_close(attend(kind, q, k, v, rotation=rotation, **places), plain)

    def test_one_place_of_each_is_for_all(self, kind):
        """What broadcasts by right: positions alike for all samples, and heads that share their angles."""
        encoding = build_encoding("rope", head_dim=8, num_heads=2)
        q, k, v = torch.randn(3, 2, 2, 10, 8)
        positions = torch.randn(10, 2)
        one = attend(kind, q, k, v, rotation=encoding(positions))
        torch.testing.assert_close(one, attend(kind, q, k, v, rotation=encoding(positions.expand(2, -1, -1))))


@pytest.mark.parametrize("kind", ["favor+", "arc-cosine", "polynomial"])
def test_feature_map_of_other_heads(kind):
    for heads, width in ((2, 6), (3, 8)):
        with pytest.raises(ValueError, match=f"of 2 heads of width 8, the queries are of {heads} of width {width}"):
            attend(kind, *torch.randn(3, 2, heads, 10, width))


def test_the_name_of_a_feature_map_in_place_of_it():
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(TypeError, match="phi is what build_feature_map gives, not a str"):
        linear_attention(q, q, q, "favor+")


@pytest.mark.parametrize("locality", [False, True])
def test_second_derivatives_are_an_error_and_not_zero(locality):
    """Of a sum too, whose gradient is a constant: torch's own mark is for gradients that are functions."""
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = (torch.randn(1, 2, 324, 8).requires_grad_() for _ in range(3))
    given = {"locality": build_locality("gaussian", num_heads=2), "positions": grid_positions((18, 18))}
    out = linear_attention(q, k, v, phi, **(given if locality else {}))
    (gradient,) = torch.autograd.grad(out.sum(), v, create_graph=True)
    plain = torch.autograd.grad(linear_attention(q, k, v, phi, **(given if locality else {})).sum(), v)[0]
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(out.square().mean() + gradient.square().sum(), k)


def test_gradients_in_batches_are_an_error_that_says_what_to_do():
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16)
    q, k, v = torch.randn(3, 1, 2, 5, 8)

    def attend(q):
        return linear_attention(q, k, v, phi)

    with pytest.raises(RuntimeError, match=r"one gradient at a time: leave out vectorize=True .* torch.func.jacrev"):
        torch.autograd.functional.jacobian(attend, q, vectorize=True)
    torch.testing.assert_close(torch.func.jacrev(attend)(q), torch.autograd.functional.jacobian(attend, q))


@pytest.mark.parametrize(("samples", "keys"), [(0, 5), (2, 0)])
@pytest.mark.parametrize("name", ["favor+", "arc-cosine", "polynomial"])
def test_nothing_to_attend_to_has_gradients(name, samples, keys):
    phi = build_feature_map(name, head_dim=8, num_heads=2)
    q = torch.randn(samples, 2, 5, 8, requires_grad=True)
    k, v = (torch.randn(samples, 2, keys, 8, requires_grad=True) for _ in range(2))
    out = linear_attention(q, k, v, phi)
    assert out.shape == q.shape
    assert not out.any()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))
