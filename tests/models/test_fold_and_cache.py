"""What evaluation computes once and keeps, and models folded for inference."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from performer_string import ENCODINGS, fold
from performer_string.position import SeparableEncoding
from performer_string.utils.cache import TensorCache
from tests.helpers.small_vit import vit


@pytest.mark.parametrize("name", ["rope-mixed", "cayley-string", "liere"])
def test_evaluation_turns_once_a_grid_and_is_never_stale(name, monkeypatch):
    model = vit(encoding=name).eval()
    calls = []
    forward = type(model.encoding).forward
    monkeypatch.setattr(type(model.encoding), "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    wide, high = torch.randn(1, 2, 16, 24), torch.randn(1, 2, 24, 16)
    with torch.no_grad():
        first = model(wide)
        model(high)
        assert torch.equal(model(wide), first)
        assert len(calls) == 2  # a grid each
        for parameter in model.encoding.parameters():
            parameter.mul_(1.5)
        changed = model(wide)
        assert len(calls) == 3
        assert not torch.equal(changed, first)
        model.blocks[1].attention.qkv.weight.mul_(2)
        assert not torch.equal(model(wide), changed)
        assert not copy.deepcopy(model).kept.results
    torch.testing.assert_close(model(wide), model.train()(wide))
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(wide), model.eval()(wide))


def test_the_latest_results_are_kept():
    kept, one = TensorCache(3), torch.zeros(1)
    for key in range(6):
        kept.get(key, [one], lambda key=key: key)
        assert list(kept.results) == list(range(max(0, key - 2), key + 1))
    kept.get(3, [one], lambda: None)  # found
    kept.get(4, [one.clone()], lambda: None)  # of another source: made anew, and the latest
    assert list(kept.results) == [3, 5, 4]


def test_what_a_result_was_made_of_lives_as_long():
    """Or another tensor could come to lie where it was, and be taken for it."""
    kept, source = TensorCache(1), torch.ones(3)
    alive = weakref.ref(source)
    kept.get("x", [source], lambda: 1)
    del source
    gc.collect()
    assert alive() is not None


def test_generators_get_their_gradient_in_evaluation_mode_too():
    model, images = vit(encoding="rope-mixed").eval(), torch.randn(1, 2, 16, 24)
    with torch.no_grad():
        model(images)
    model(images).square().sum().backward()
    assert model.encoding.omega.grad is not None


def test_what_evaluation_keeps_is_forgotten_in_time():
    """After writes through `.data` and a training, in other modes of the positions, and where no version is counted."""
    wide, high = torch.randn(1, 2, 16, 24), torch.randn(1, 2, 24, 16)
    with torch.no_grad():
        model = vit(encoding="rope-mixed", attention="softmax").eval()
        before = model(wide), model(high)
        for parameter in model.parameters():
            parameter.data.add_(0.1)
        model.train().eval()
        fresh = copy.deepcopy(model)
        assert (model(wide) - before[0]).abs().max() > 1e-3
        assert torch.equal(model(wide), fresh(wide))
        extrapolated = model(high)
        model.config.positions = "interpolate"
        assert not torch.equal(model(high), extrapolated)
        fixed = vit(encoding="rope").eval()
        fixed(wide)
        fixed.encoding.omega.mul_(0.5)
        assert torch.equal(fixed(wide), copy.deepcopy(fixed)(wide))
        fixed.config.centred = True
        assert torch.equal(fixed(wide), copy.deepcopy(fixed)(wide))
        fixed.bfloat16()
        assert not fixed.kept.results  # of the other type
    with torch.inference_mode():
        one, two = vit(encoding="cayley-string").eval(), vit(encoding="cayley-string").eval()
        one(wide)
        one.load_state_dict(two.state_dict())
        assert torch.equal(one(wide), two(wide))


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"share_layers": True}, {"log_n_scaling": True}], ids=str)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_folded_model_has_equal_outputs_and_leaves_the_model_alone(encoding, changes):
    model = vit(encoding=encoding, attention="softmax", **changes).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded, images = fold(model), torch.randn(2, 2, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-5)
    positions = folded.grid_positions((4, 3))
    assert all(rotation.factor()[0] is None for rotation in folded.rotations(positions))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("encoding", [name for name, kind in ENCODINGS.items() if issubclass(kind, SeparableEncoding)])
def test_folding_within_autocast_rounds_nothing(encoding):
    model = vit(encoding=encoding).eval()
    with torch.autocast("cpu", torch.bfloat16):
        within = fold(model)
    for name, value in fold(model).state_dict().items():
        assert torch.equal(within.state_dict()[name], value), name


def test_a_model_folded_in_inference_mode_works_outside_of_it():
    model, images = vit(encoding="circulant-string").eval(), torch.randn(2, 2, 16, 24)
    with torch.inference_mode():
        folded = fold(model)
    torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-5)
    assert not any(x.is_inference() for x in folded.state_dict().values())


@pytest.mark.parametrize("encoding", ["circulant-string", "cayley-string", "pate-so3", "rope-mixed"])
def test_folding_twice_is_folding_once_and_its_weights_stay_with_it(encoding):
    model, images = vit(encoding=encoding, attention="softmax").eval(), torch.randn(2, 2, 16, 24)
    once, other = fold(model), fold(vit(encoding=encoding, attention="softmax"))
    with torch.no_grad():
        torch.testing.assert_close(fold(once)(images), model(images), rtol=1e-5, atol=1e-5)
        other.load_state_dict(once.state_dict())
        assert torch.equal(other(images), once(images))
        assert torch.equal(torch.func.functional_call(other, once.state_dict(), (images,)), once(images))
    if encoding == "rope-mixed":  # no basis, nothing folded
        model.load_state_dict(once.state_dict())
        return
    with pytest.raises(RuntimeError, match=r"a model that is folded .*, and this one is not folded"):
        model.load_state_dict(once.state_dict())
    with pytest.raises(RuntimeError, match="not folded, and this one is folded"):
        once.load_state_dict(model.state_dict())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_bases_are_folded_once_in_evaluation(mode, monkeypatch):
    model, images, folds = vit(encoding="cayley-string").eval(), torch.randn(1, 2, 16, 24), []
    for block in model.blocks:
        fold = block.attention.fold
        monkeypatch.setattr(block.attention, "fold", lambda basis, fold=fold: folds.append(1) or fold(basis))
    monkeypatch.setattr(model.encoding, "check_finite", lambda: folds.append(1))  # in the same breath
    with mode():
        first = model(images)
        count = len(folds)
        assert torch.equal(model(images), first)
    assert len(folds) == count == len(model.blocks) + 1


def test_steps_of_fused_optimizers_are_seen():
    """They write to parameters without a count of it."""
    model, images = vit(encoding="cayley-string").eval(), torch.randn(1, 2, 16, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(images).square().sum().backward()
    with torch.no_grad():
        before = model(images)
        optimizer.step()
        after = model(images)
        assert (after - before).abs().max() > 1e-2
        assert torch.equal(after, copy.deepcopy(model)(images))


def test_replicas_keep_nothing():
    """Of `nn.DataParallel`: their weights are no parameters, and what they kept would be the model's."""
    model, images = vit(encoding="rope-mixed").eval(), torch.randn(1, 2, 16, 24)
    for module in model.modules():
        module._is_replica = True
    with torch.no_grad():
        model(images)
    assert not any(module.results for module in model.modules() if isinstance(module, TensorCache))
