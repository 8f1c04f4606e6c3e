"""`ViT.cached()`: what is computed once, and that nothing is kept without it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from performer_string.utils.cache import TensorCache
from tests.helpers.small_vit import vit

WITH_GENERATORS = ["rope-mixed", "circulant-string", "cayley-string", "liere"]


def images(height: int = 16, width: int = 24) -> Tensor:
    return torch.randn(1, 2, height, width)


@torch.no_grad()
def test_outputs_are_of_the_weights_of_now():
    for encoding in WITH_GENERATORS:
        model, x = vit(encoding=encoding).eval(), images()
        before = model(x)
        for parameter in model.parameters():
            parameter.data = 1.3 * parameter + 0.1
        assert (model(x) - before).abs().max() > 1e-4, encoding
        assert torch.equal(model(x), copy.deepcopy(model)(x)), encoding


@pytest.mark.parametrize("encoding", WITH_GENERATORS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_cached_computes_each_grid_and_fold_once(encoding, mode, monkeypatch):
    model, wide, high = vit(encoding=encoding).eval(), images(16, 24), images(24, 16)
    rotations, folds = [], []
    forward, fold = type(model.encoding).forward, type(model.blocks[0].attention).folded_projection
    monkeypatch.setattr(type(model.encoding), "forward", lambda self, r: rotations.append(1) or forward(self, r))
    monkeypatch.setattr(
        type(model.blocks[0].attention), "folded_projection", lambda self, b: folds.append(1) or fold(self, b)
    )
    with mode():
        plain = [model(x) for x in (wide, high, wide)]
        rotations.clear(), folds.clear()
        with model.cached():
            assert all(torch.equal(model(x), y) for x, y in zip((wide, high, wide), plain, strict=True))
        assert len(rotations) == 2
        assert len(folds) in (0, len(model.blocks))  # encodings without a basis have nothing to fold
        model(wide)
        assert len(rotations) == 3  # off again


def test_cached_is_off_after_an_error_and_in_copies():
    model = vit(encoding="rope-mixed").eval()
    with torch.no_grad(), model.cached():
        model(images())
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        assert all(each.rotation_cache.results is None for each in copies)
    with pytest.raises(KeyError), model.cached():
        raise KeyError
    assert model.rotation_cache.results is None


def test_a_nested_context_leaves_the_outer_one_on():
    model, x = vit(encoding="rope-mixed").eval(), images()
    with torch.no_grad(), model.cached():
        model(x)
        kept = dict(model.rotation_cache.results)
        with model.cached():
            model(x)
        assert kept
        assert model.rotation_cache.results == kept
    assert not model.rotation_cache.is_on


def test_gradients_within_cached_are_those_without_it():
    model, x = vit(encoding="cayley-string").eval(), images()
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.encoding.parameters()))
    with model.cached():
        with torch.no_grad():
            model(x)
        got = torch.autograd.grad(model(x).square().sum(), list(model.encoding.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_cached_is_refused_in_training():
    with pytest.raises(RuntimeError, match=r"call model\.eval"), vit().train().cached():
        pass


def test_the_latest_results_are_cached():
    cache = TensorCache(3)
    cache.switch(True)
    with torch.no_grad():
        for key in range(6):
            cache.get(key, lambda key=key: key)
            assert list(cache.results) == list(range(max(0, key - 2), key + 1))
