"""Softmax attention with a decay by flash attention, beside N x N weights."""

from __future__ import annotations

import pytest
import torch

from eval.speed.measure import peak_bytes
from performer_string import build_encoding, build_locality, grid_positions, softmax_attention
from performer_string.ops import decayed_softmax
from tests.helpers.small_vit import vit
from train.inspection import multiplications

HEADS, WIDTH = 2, 6
ALL_PAIRS = 10**6
EXTRAS = ["", "mask", "large logits and mask", "bias", "mask and bias", "prefix", "wide values", "narrow values"]


def decay(**options):
    locality = build_locality("gaussian", num_heads=HEADS, **{"sigma": 1.5, **options})
    with torch.no_grad():
        for p in locality.parameters():
            p.add_(torch.randn_like(p) / 3)  # another sigma and amplitude in each head
    return locality


def attend(locality, dense, q, k, v, positions, **options):
    locality.max_dense_tokens = ALL_PAIRS if dense else 0
    return softmax_attention(q, k, v, locality=locality, positions=positions, **options)


@pytest.fixture
def columns(monkeypatch):
    """Columns that were used, in order."""
    used, original = list[object](), decayed_softmax.attend_with_columns
    record = lambda *arguments: used.append(arguments[3]) or original(*arguments)  # noqa: E731
    monkeypatch.setattr("performer_string.ops.softmax.attend_with_columns", record)
    return used


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("options", [{}, {"sigma": [1.0, 3.0]}, {"sigma": 30.0}], ids=str)
@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_all_weights(columns, normalised, options, extras, dtype):
    torch.manual_seed(0)
    positions = grid_positions((5, 7))
    prefix = 2 if extras == "prefix" else 0
    positions = torch.cat([torch.zeros(prefix, 2), positions])
    q, k, v = torch.randn(3, 3, HEADS, len(positions), WIDTH).to(dtype).unbind(0)
    more = {"wide values": 9, "narrow values": 3}.get(extras, WIDTH)
    v = torch.cat([v, v], dim=-1)[..., :more]
    q = q * 1e4 if "large" in extras else q  # so that a finite bias would not mask
    inputs = [x.requires_grad_() for x in (q.contiguous(), k.contiguous(), v.contiguous())]
    given = {"num_prefix": prefix, "rotation": build_encoding("rope", head_dim=WIDTH, num_heads=HEADS)(positions)}
    if "mask" in extras:
        mask = torch.rand(3, len(positions)) < 0.5
        mask[1] = False
        given["key_mask"] = mask
    if "bias" in extras:
        given["key_bias"] = torch.randn(3, HEADS, len(positions), requires_grad=True)
        inputs.append(given["key_bias"])
    locality = decay(normalised=normalised, **options)
    inputs += list(locality.parameters())
    dense, fast = (attend(locality, each, *inputs[:3], positions, **given) for each in (True, False))
    assert len(columns) == 1
    assert fast.dtype == dense.dtype == v.dtype
    rounded = dtype == torch.bfloat16 or ("large" in extras and dtype == torch.float32)
    close = {"rtol": 2e-2, "atol": 2e-2} if rounded else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(fast, dense, **close)
    if "large" in extras:  # one key has nearly all weight, and gradients are those of its rounding
        return
    weights = torch.randn_like(dense)
    close = {"rtol": 5e-2, "atol": 1e-1} if rounded else {"rtol": 1e-3, "atol": 1e-4}
    both = [torch.autograd.grad((out * weights).sum(), inputs) for out in (fast, dense)]
    torch.testing.assert_close(*both, **close)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("each_axis", [False, True])
def test_columns_give_the_logarithm_of_the_decay(axes, each_axis):
    """In any dimension, off the grid and far from the origin, with the gradients of all parameters."""
    locality = decay(sigma=[1.5, 0.7, 2.5][:axes] if each_axis else 1.5).double()
    positions = torch.randn(9, axes, dtype=torch.float64) * 3 + 100
    a, b = locality.log_columns(positions, num_prefix=2)
    ours, expected = a @ b.mT, locality.log_matrix(positions, num_prefix=2)
    torch.testing.assert_close(ours, expected)
    weights = torch.randn_like(ours)
    parameters = list(locality.parameters())
    gradients = [torch.autograd.grad((x * weights).sum(), parameters) for x in (ours, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("normalised", [False, True])
def test_memory_is_not_that_of_all_pairs_in_training_either(normalised):
    positions = grid_positions((24, 24))
    inputs = torch.randn(3, 1, HEADS, len(positions), WIDTH, requires_grad=True)
    bias = torch.randn(1, len(positions), HEADS, requires_grad=True).mT  # as of a gate of each token
    locality = decay(normalised=normalised)

    def step(dense: bool) -> None:
        attend(locality, dense, *inputs.unbind(0), positions, key_bias=bias).sum().backward()

    peaks = [peak_bytes(lambda dense=dense: step(dense), inputs.device) for dense in (False, True)]
    assert peaks[0] < peaks[1] / 10


@torch.no_grad()
def test_all_weights_are_used_for_narrow_decays(columns):
    positions = grid_positions((5, 7)) * 10
    q, k, v = torch.randn(3, 1, HEADS, len(positions), WIDTH).unbind(0)
    narrow = decay(sigma=0.26, fixed=True)
    dense, fast = (attend(narrow, each, q, k, v, positions) for each in (True, False))
    torch.testing.assert_close(fast, dense, rtol=0, atol=0)
    assert not columns


@torch.no_grad()
def test_other_decays_and_few_tokens_use_all_weights(columns):
    positions = grid_positions((5, 7))
    q, k, v = torch.randn(3, 1, HEADS, len(positions), WIDTH).unbind(0)
    attend(build_locality("exponential", num_heads=HEADS), False, q, k, v, positions)
    attend(decay(), True, q, k, v, positions)
    assert not columns
    attend(decay(), False, q, k, v, positions)
    assert len(columns) == 1


def test_keys_with_and_without_the_decay_are_counted():
    plain, decayed = (
        multiplications(vit(max_dense_tokens=0, attention="softmax", locality=locality), (64, 96))
        for locality in (None, "gaussian")
    )
    tokens, heads, width, layers = (64 // 4) * (96 // 8), 2, 12, 3
    width_with_columns = 16  # four columns of queries and keys, and values, are padded to a multiple of 8
    pairs = tokens**2 * heads * layers
    assert decayed - plain == pairs * (2 * 2 * width_with_columns - 2 * width)
