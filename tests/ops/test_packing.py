"""Packed sequences are what each is alone: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from performer_string import (
    SelfAttention,
    build_attention,
    build_encoding,
    build_feature_map,
    build_locality,
    build_value_map,
    linear_attention,
    softmax_attention,
)
from performer_string.ops.layout import AttentionContext, TokenLayout
from performer_string.position.base import Sizes

LENGTHS = (7, 1, 13, 7, 0, 2)  # two of one length, one token, none
ENDS = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
TOKENS = sum(LENGTHS)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, TOKENS, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


def one_by_one(attend, tensors: list[Tensor | None]) -> Tensor:
    """The definition: a loop over the sequences, each of which is attention alone."""
    parts = zip(*([None] * 6 if x is None else x.split(LENGTHS, dim=2) for x in tensors), strict=True)
    return torch.cat([attend(*part) for part in parts if part[0].shape[2]], dim=2)


def compare(packed: Tensor, alone: Tensor, variables: list[Tensor], dtype: torch.dtype) -> None:
    exact = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(packed, alone, **exact)
    weight = torch.randn_like(packed)
    gradients = [torch.autograd.grad((out * weight).sum(), variables) for out in (packed, alone)]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, **exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["softmax", "favor+", "favor+hyperbolic", "arc-cosine", "polynomial"])
def test_attention_is_that_of_each_sequence(name, biased, dtype):
    q, k, v = inputs(dtype)
    bias = torch.randn(1, 2, TOKENS, dtype=dtype, requires_grad=True) if biased else None
    if name == "softmax":
        attend, variables = softmax_attention, []
    else:
        options = {} if name == "polynomial" else {"num_features": 16, "learned": True}
        phi = build_feature_map(name, head_dim=8, num_heads=2, **options).to(dtype)
        variables = list(phi.parameters())

        def attend(q, k, v, **context):
            return linear_attention(q, k, v, phi, **context)

    packed = attend(q, k, v, key_bias=bias, cu_seqlens=ENDS)
    alone = one_by_one(lambda q, k, v, b: attend(q, k, v, key_bias=b), [q, k, v, bias])
    compare(packed, alone, [q, k, v, *variables, *([] if bias is None else [bias])], dtype)
    with pytest.raises(AssertionError):  # the control: attention to all tokens is another
        torch.testing.assert_close(packed, attend(q, k, v, key_bias=bias))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["softmax", "favor+"])
def test_rotations_and_decays(name, normalised):
    """Positions differ from sequence to sequence, those of equal length too."""
    q, k, v = inputs(torch.float64)
    positions = torch.randn(TOKENS, 2, dtype=torch.float64) * 3
    encoding = build_encoding("circulant-string", head_dim=8, num_heads=2).double()
    decay = build_locality("gaussian", num_heads=2, sigma=2.0, normalised=normalised).double()
    phi = build_feature_map("favor+", head_dim=8, num_heads=2, num_features=16).double()

    def attend(q, k, v, positions, **context):
        options = {"rotation": encoding(positions), "locality": decay, "positions": positions, **context}
        return softmax_attention(q, k, v, **options) if name == "softmax" else linear_attention(q, k, v, phi, **options)

    packed = attend(q, k, v, positions, cu_seqlens=ENDS)
    alone = one_by_one(lambda q, k, v, p: attend(q, k, v, p[0, 0]), [q, k, v, positions[None, None]])
    variables = [q, k, v, *(p for module in (encoding, decay) for p in module.parameters())]
    compare(packed, alone, variables, torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"log_n_scaling": 9, "qk_norm": True},
        {"key_gate": True},
        {"values": "lepe"},
        {"values": "connection"},
        {"values": "metric-gating"},
        {"attention": "softmax", "values": "group-action"},
    ],
    ids=str,
)
def test_the_layer(options):
    """With prefix tokens in each sequence, and all that is a function of its tokens and their number."""
    options = dict(options)
    name, values, log_n = (
        options.pop("attention", "linear"),
        options.pop("values", None),
        options.pop("log_n_scaling", None),
    )
    backend = build_attention(
        name, head_dim=8, num_heads=2, feature_map="favor+", seed=0, feature_options={"num_features": 16}
    )
    sizes = Sizes(8, 2, 1, (5,))
    if values is not None:
        values = build_value_map(values, head_dim=8, num_heads=2, coord_dim=1, grid=(5,))
    layer = SelfAttention(16, 2, backend, values=values, log_n_scaling=log_n, **options).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    encoding = build_encoding("rope", head_dim=sizes.head_dim, num_heads=2, coord_dim=1).double()
    lengths = (4, 2, 6, 4)
    positions = [torch.tensor([0.0, *range(n - 1)], dtype=torch.float64)[:, None] for n in lengths]  # a prefix token
    x = torch.randn(1, sum(lengths), 16, dtype=torch.float64, requires_grad=True)
    layout = TokenLayout(torch.cat(positions), None, 1, lengths=lengths)
    packed = layer(x, encoding(layout.positions), layout)
    parts = zip(x.split(lengths, dim=1), positions, strict=True)
    alone = torch.cat([layer(part, encoding(p), TokenLayout(p, None, 1)) for part, p in parts], dim=1)
    compare(packed, alone, [x, *layer.parameters()], torch.float64)


def test_sequences_of_one_grid_are_one_batch():
    """A locality is called once for the images of a grid that is known."""
    from performer_string.ops.layout import make_grid
    from performer_string.ops.packing import attend_packed

    grids = tuple(make_grid(shape, (1.0, 1.0)) for shape in ((2, 3), (3, 2), (2, 3)))
    layout = TokenLayout(torch.zeros(18, 2), lengths=(6, 6, 6), grids_of=grids)
    x, calls = torch.randn(1, 2, 18, 4), []

    def attend(q, k, v, context):
        calls.append((len(q), context.layout.grid))
        return v

    decay = build_locality("gaussian", num_heads=2)
    assert torch.equal(attend_packed(attend, x, x, x, AttentionContext(None, decay, layout)), x)
    assert calls == [(2, grids[0]), (1, grids[1])]
    calls.clear()
    assert torch.equal(attend_packed(attend, x, x, x, AttentionContext(None, None, layout)), x)
    assert calls == [(3, None)]


@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        ([0, 3, 2, TOKENS], ValueError, "not to decrease"),
        ([1, 3, TOKENS], ValueError, r"must be \[0, n_1"),
        ([0, 3], ValueError, rf"N = {TOKENS} tokens"),
        ([[0, TOKENS]], ValueError, r"must be \[0, n_1"),
        ([0.0, float(TOKENS)], TypeError, "tensor of integers, as torch.int32, not torch.float32"),
    ],
)
def test_ends_that_do_not_fit(ends, kind, message):
    q, k, v = inputs(torch.float32)
    with pytest.raises(kind, match=message):
        softmax_attention(q, k, v, cu_seqlens=torch.tensor(ends))


@pytest.mark.parametrize("ends", [[0], [0, 0]])
def test_no_sequence_with_tokens(ends):
    """A batch that a filter has emptied, as in flash-attn."""
    q, k, v = torch.randn(3, 1, 2, 0, 8)
    phi = build_feature_map("elu", head_dim=8, num_heads=2)
    for out in (
        softmax_attention(q, k, v, cu_seqlens=torch.tensor(ends)),
        linear_attention(q, k, v, phi, cu_seqlens=torch.tensor(ends)),
    ):
        assert out.shape == v.shape


def test_what_does_not_go_with_packing():
    q, k, v = inputs(torch.float32)
    with pytest.raises(ValueError, match="hold no padding"):
        softmax_attention(q, k, v, cu_seqlens=ENDS, key_mask=torch.ones(1, TOKENS, dtype=torch.bool))
    two = q.expand(2, -1, -1, -1)
    with pytest.raises(ValueError, match=r"are one batch \[1, H, N, d\]"):
        softmax_attention(two, two, two, cu_seqlens=ENDS)
    with pytest.raises(TypeError, match="not list"):
        softmax_attention(q, k, v, cu_seqlens=[0, TOKENS])


def test_lengths_that_are_a_tensor():
    """Boundaries as `cu_seqlens` were taken for lengths, and lengths in a tensor gave a warning of torch's."""
    for lengths in (ENDS, ENDS.diff()):
        with pytest.raises(TypeError, match=r"Python integers.* tuple\(cu_seqlens.diff\(\).tolist\(\)\), not a Tensor"):
            TokenLayout(lengths=lengths)


def test_lengths_of_other_tokens_with_log_n_scaling():
    """It was an error of torch's about an allocated size."""
    layer = SelfAttention(8, 2, build_attention("softmax", head_dim=4, num_heads=2), log_n_scaling=5)
    with pytest.raises(ValueError, match=r"here 9 by their lengths \(0, 3, 6\), not a batch of 1 with 6 tokens each"):
        layer(torch.randn(1, 6, 8), None, TokenLayout(lengths=(0, 3, 6)))


@pytest.mark.parametrize(("batch", "lengths"), [(2, (3, 3)), (1, (4, 3)), (1, (2, 3))])
def test_a_layer_with_lengths_of_other_tokens(batch, lengths):
    layer = SelfAttention(8, 2, build_attention("softmax", head_dim=4, num_heads=2))
    message = rf"here {sum(lengths)} by their lengths .* not a batch of {batch} with 6 tokens each"
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(batch, 6, 8), None, TokenLayout(lengths=lengths))
