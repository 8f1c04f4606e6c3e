"""Time and memory of a call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eval.speed.measure import CachedCall, median_ratio, peak_bytes, power_law_exponent, time_in_turn
from performer_string import ViT, build_feature_map
from performer_string.layers.backends import LinearBackend
from tests.helpers.checkpoints import CONFIG

CPU = torch.device("cpu")


def test_calls_are_timed_in_turn():
    calls: list[str] = []
    times = time_in_turn({n: (lambda n=n: calls.append(n)) for n in "ab"}, 3, CPU)
    assert calls == list("ab" * 4)  # the first round is not counted
    assert [len(t) for t in times.values()] == [3, 3]


def test_power_law_exponent_and_median_ratio():
    assert power_law_exponent([1, 2, 4], [3, 3 * 2**1.5, 3 * 4**1.5]) == pytest.approx(1.5)
    assert power_law_exponent([1], [3]) != power_law_exponent([1], [3])  # NaN
    assert median_ratio([2, 4, 6], [1, 1, 3]) == 2


@torch.no_grad()
def test_cached_call_computes_rotations_once(monkeypatch):
    vit, image, computed = ViT(CONFIG).eval(), torch.randn(1, 1, 60, 60), []
    rotations = vit.rotations
    monkeypatch.setattr(vit, "rotations", lambda layout: computed.append(1) or rotations(layout))
    call = CachedCall(vit, lambda: vit(image))
    assert torch.equal(call(), call())
    assert len(computed) == 1
    del call
    vit(image)
    assert len(computed) == 2


def test_peak_bytes_of_tensors_alive():
    x, unit = torch.randn(100, 100), 100 * 100 * 4

    def call():
        a = x * 2  # 1 unit
        b = a + x  # 2
        c = b.mT  # a view
        a = torch.cat([c, c])  # 4, and then 3
        del b, c  # 2
        return (a[:100] - x).sum()  # 3

    assert peak_bytes(call, CPU) == pytest.approx(4 * unit, rel=0.01)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_peak_bytes_of_attention_by_tokens(attention):
    """A forward pass by the number of tokens, weights in full by its square."""
    peaks = []
    for side in (8, 16):
        vit = ViT(replace(CONFIG, attention=attention)).eval()
        image = torch.randn(1, 1, 12 * side, 12 * side)
        with torch.inference_mode():
            peaks.append(peak_bytes(lambda vit=vit, image=image: vit(image), CPU))
    assert peaks[1] / peaks[0] == pytest.approx(4, rel=0.3)  # torch's fused softmax keeps no weights either
    weights = []
    for tokens in (64, 256):
        q = torch.randn(1, 2, tokens, 8)
        backend = LinearBackend(build_feature_map("arc-cosine", head_dim=8, num_heads=2, num_features=8))
        weights.append(peak_bytes(lambda q=q, backend=backend: backend.weights(q, q), CPU))
    assert weights[1] / weights[0] == pytest.approx(16, rel=0.3)
