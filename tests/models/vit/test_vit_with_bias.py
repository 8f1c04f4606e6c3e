"""Localities and value maps in a whole model, in every layer."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import pytest
import torch

from eval.seeds import check_seeds
from performer_string import LOCALITIES, VALUE_MAPS, ViT, ViTConfig, build_encoding, fold, grid_positions
from performer_string.bias import base
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import build_attention
from performer_string.layers.inspection import inspect_attention
from performer_string.ops import layout, reference
from performer_string.ops.layout import TokenLayout
from tests.helpers.cases import case
from tests.helpers.small_vit import SMALL, vit
from train.checkpoint import check_same_model, load_trained
from train.checkpoint_file import read_checkpoint
from train.data.module import ImageData
from train.module import ImageClassifier
from train.optim import OptimConfig

IMAGES = torch.randn(2, 2, 16, 24, generator=torch.Generator().manual_seed(0))
GAUSSIAN = {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.8}}


# Linear attention with N x N weights, as few tokens have, and by the sum over their grid; and exact attention.
WAYS = ({"attention": "linear"}, {"attention": "linear", "max_dense_tokens": 0}, {"attention": "softmax"})
PREFIXES = ({}, {"pool": "cls", "registers": 2})


def record(calls, module, args, out):
    """Record values and outputs of an attention backend."""
    calls.append((args[2], out))


def check_gradients(locality, values, options):
    """Check that every parameter gets a gradient that can reach it.

    A class token has no position. Where it is all that is read, the last layer's locality and convolution do not
    matter.
    """
    for way in WAYS:
        for prefix in PREFIXES:
            with case(way, prefix):
                biased = {"locality": locality, "locality_options": options} if locality else {}
                model = vit(encoding="circulant-string", values=values, **way, **biased, **prefix)
                model(IMAGES).square().sum().backward()
                without = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
                of_patches = ["blocks.2.attention.locality."]
                of_patches += ["blocks.2.attention.values."] if values == "lepe" else []
                last = [name for name, _ in model.named_parameters() if name.startswith(tuple(of_patches))]
                assert without == (last if prefix else [])
                assert len({id(decay) for decay in model.localities()}) == (3 if locality else 0)
                for decay in model.localities()[: 2 if prefix else 3]:
                    for parameter in decay.parameters():  # of every head
                        assert (
                            (parameter.grad.flatten(1) if parameter.ndim > 1 else parameter.grad[:, None]).any(-1).all()
                        )


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("locality", LOCALITIES)
def test_gradients_reach_every_locality(locality, normalised):
    check_gradients(locality, None, {"normalised": normalised})


@pytest.mark.parametrize("values", [None, *VALUE_MAPS])
def test_gradients_reach_every_value_map(values):
    for locality in (None, "gaussian"):
        check_gradients(locality, values, {})


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_layers_multiply_their_weights_by_lambda(way):
    """Each layer's outputs are those of its dense weights times its lambda, which is 1 for prefix tokens."""
    for prefix in PREFIXES:
        model, count = vit(**way, **GAUSSIAN, **prefix), 3 if prefix else 0
        calls = []
        for block in model.blocks:
            torch.nn.init.normal_(block.attention.locality.raw_sigma)
            block.attention.backend.register_forward_hook(partial(record, calls))
        positions = grid_positions((4, 3))
        squares = (positions[:, None] - positions).square().sum(-1)
        with torch.no_grad():
            probes = inspect_attention(model, IMAGES)
            for probe, (values, out), locality in zip(probes, calls, model.localities(), strict=True):
                decay = torch.ones(2, 12 + count, 12 + count)
                for h, (sigma, amplitude) in enumerate(zip(locality.sigma(), locality.amplitude(), strict=True)):
                    decay[h, count:, count:] = amplitude * (-squares / (2 * sigma**2)).exp()
                torch.testing.assert_close(probe.effective_weights(), probe.weights() * decay)
                torch.testing.assert_close(reference.attend(probe.weights() * decay, values), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_normalised_locality_is_a_bias_of_the_logits(way):
    """Each layer's outputs are those of its dense weights with lambda, which sum to one."""
    for name in LOCALITIES:
        with case(name), torch.no_grad():
            model = vit(**way, locality=name, locality_options={"normalised": True}, registers=1)
            calls = []
            for block in model.blocks:
                for parameter in block.attention.locality.parameters():
                    torch.nn.init.uniform_(parameter, -2, -1)  # narrow decays
                block.attention.backend.register_forward_hook(partial(record, calls))
            for probe, (values, out) in zip(inspect_attention(model, IMAGES), calls, strict=True):
                weights = probe.effective_weights()
                torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
                assert (weights - probe.weights()).abs().max() > (0.001 if name == "kerple" else 0.01)
                torch.testing.assert_close(reference.attend(weights, values), out, rtol=1e-4, atol=1e-5)


def test_without_a_locality_the_effective_weights_are_the_attention():
    probe = inspect_attention(vit(), IMAGES)[1]
    assert torch.equal(probe.effective_weights(), probe.weights())


def test_very_wide_lambda_of_amplitude_one_has_no_effect():
    wide = {"sigma": 5e4, "sigma_bounds": [1.0, 1e5]}
    for way in WAYS:
        model, plain = vit(**way, locality="gaussian", locality_options=wide), vit(**way)
        missing = model.load_state_dict(plain.state_dict(), strict=False)
        assert all("locality" in name for name in missing.missing_keys)
        with torch.no_grad():
            torch.testing.assert_close(model(IMAGES), plain(IMAGES), rtol=1e-4, atol=1e-5)
            model.localities()[1].raw_sigma.fill_(-20.0)  # a narrow one has
            assert (model(IMAGES) - plain(IMAGES)).abs().max() > 1e-4


def test_folded_model_gives_the_same():
    for values in VALUE_MAPS:
        with case(values), torch.no_grad():
            options = {"encoding": "cayley-string"} if values in ("group-action", "connection") else {}
            model = vit(encoding="cayley-string", **GAUSSIAN, values=values, value_options=options).eval()
            for p in model.parameters():
                torch.nn.init.normal_(p, std=0.2)
            torch.testing.assert_close(fold(model)(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_mixed_precision(way):
    """Close to float32, forward and backward."""
    for values in VALUE_MAPS:
        with case(values):
            model = vit(**way, **GAUSSIAN, values=values)
            exact = model(IMAGES)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(IMAGES)
            out.float().square().sum().backward()
            assert (out - exact).abs().max() < 0.05
            assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("locality", LOCALITIES)
def test_many_tokens_are_summed_over_their_grid_and_few_by_matrices(locality, monkeypatch):
    """Each layer by one of both, to the same logits."""
    outs, sums = [], []
    on_grid = base.decayed_attention
    monkeypatch.setattr(base, "decayed_attention", lambda *args: sums.append(args) or on_grid(*args))
    for most, expected in ((12, 0), (11, 3)):
        torch.manual_seed(0)
        model = vit(max_dense_tokens=most, locality=locality)
        with torch.no_grad():
            outs.append(model(IMAGES))
        assert len(sums) == expected
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("both_sums")
def test_other_sizes():
    model = vit(**GAUSSIAN, values="connection")
    for size in ((4, 8), (32, 80)):
        assert torch.isfinite(model(torch.randn(1, 2, *size))).all()


@pytest.mark.parametrize("prefix", PREFIXES, ids=["mean", "cls"])
@pytest.mark.usefixtures("over_grid")
def test_model_never_searches_for_its_grid(prefix, monkeypatch):
    """The layout of a model has its grid; the outputs are those of the same positions as a tensor."""
    model, images = vit(**GAUSSIAN, values="lepe", **prefix).eval(), torch.randn(1, 2, 40, 72)
    with torch.no_grad():
        expected = model(images, grid_positions((10, 9)))
        for module in (base, layout):
            monkeypatch.setattr(module, "find_grid", lambda positions: pytest.fail("searched for a grid"))
        torch.testing.assert_close(model(images), expected)


def test_checkpoint_without_these_fields(tmp_path):
    """It loads, and it can be resumed under the present configuration."""
    config = replace(SMALL, image_size=60, patch_size=12, in_channels=1, num_classes=4)
    classifier, data = ImageClassifier(config), ImageData("arrow", size=[60, 60], workers=0)
    vit_fields = {k: v for k, v in asdict(config).items() if not k.startswith(("locality", "value"))}
    optim = {k: v for k, v in classifier.hparams["optim"].items() if not k.startswith(("image", "position"))}
    hyper = {**classifier.hparams, "vit": vit_fields, "optim": {**optim, "betas": tuple(optim["betas"])}}
    content = {"state_dict": classifier.state_dict(), "hyper_parameters": hyper, "ImageData": data.state_dict()}
    torch.save(content, tmp_path / "old.ckpt")
    images = torch.randn(1, 1, 60, 60)
    trained = load_trained(tmp_path / "old.ckpt")
    check_seeds({"a-seed0": trained.settings, "a-seed1": {**trained.settings, **asdict(OptimConfig()), "seed": 1}})
    loaded = trained.classifier
    torch.testing.assert_close(loaded(images), classifier.eval()(images))
    path = tmp_path / "old.ckpt"
    content = read_checkpoint(path)
    check_same_model(path, content, {"vit": asdict(config)}, False)
    with pytest.raises(ValueError, match="locality: None in the checkpoint, 'gaussian' asked for"):
        check_same_model(path, content, {"vit": asdict(replace(config, locality="gaussian"))}, False)


def test_bad_configurations():
    for changes, message in (
        ({"locality": "gausian"}, "unknown locality 'gausian'. Did you mean 'gaussian'"),
        ({"locality": "gaussian", "locality_options": {"sigmas": 2}}, "no option 'sigmas'. Did you mean 'sigma'"),
        ({"locality_options": {"sigma": 2}}, "locality_options has .*, but no locality is named. Known: gaussian"),
        ({"values": "gateing"}, "unknown value map 'gateing'. Did you mean 'gating'"),
        ({"value_options": {"source": "query"}}, "value_options has .*, but no value map is named. Known: gating"),
        ({"locality": "gaussian", "attention": "performer-pytorch"}, 'has no locality; use "linear" or "softmax"'),
        (
            {"locality": "table", "locality_options": {"num_heads": 3}},
            "cannot have 'num_heads', which",
        ),
        ({"locality": "table", "locality_options": {"grid": [2, 2]}}, "cannot have 'grid', which"),
    ):
        with pytest.raises(ValueError, match=message):
            vit(**changes)


def test_layer_without_positions_or_support():
    options = {"head_dim": 4, "num_heads": 4, "feature_map": "favor+", "seed": 0, "feature_options": {}}
    gaussian = ViT(ViTConfig(16, 4, variant="micro", locality="gaussian")).blocks[0].attention.locality
    rotation = build_encoding("rope-mixed", head_dim=4, num_heads=4)(torch.zeros(5, 2))
    for attention, positions, message in (
        ("softmax", None, "needs the positions of its tokens"),
        ("performer-pytorch", torch.zeros(5, 2), "has no locality"),
    ):
        layer = SelfAttention(16, 4, build_attention(attention, **options), locality=gaussian)
        with pytest.raises(ValueError, match=message):
            layer(torch.randn(1, 5, 16), rotation, TokenLayout(positions))
