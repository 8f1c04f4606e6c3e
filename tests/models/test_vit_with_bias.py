"""A locality and a structure on the values in a whole model, in every layer."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from eval.statistics import check_seeds
from performer_string import LOCALITIES, VALUE_MAPS, ViT, ViTConfig, build_encoding, fold, grid_positions
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import build_attention
from performer_string.ops import reference
from performer_string.ops.layout import TokenLayout
from tests.helpers.small_vit import SMALL, vit
from train.callbacks.figures import locality_figure
from train.checkpoint import check_same_model, load_trained, read_checkpoint
from train.data.module import ImageData
from train.inspection import inspect_attention as probe_attention
from train.module import ImageClassifier
from train.optim import OptimConfig

IMAGES = torch.randn(2, 2, 16, 24, generator=torch.Generator().manual_seed(0))
FOCUSED = {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.8}}


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("prefix", [{}, {"pool": "cls", "registers": 2}], ids=["mean", "cls"])
@pytest.mark.parametrize("values", [None, *VALUE_MAPS])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("locality", [None, *LOCALITIES])
def test_a_gradient_reaches_every_parameter(locality, normalised, values, prefix, attention):
    """Among them sigma and amplitude of every layer and head, every layer's R_V, and every head's table.

    A CLS token has no place, so that where it is all that is read the last layer's locality cannot matter, nor can its
    convolution.
    """
    options = {"locality": locality, "locality_options": {"normalised": normalised}} if locality else {}
    model = vit(encoding="circulant-string", attention=attention, values=values, **options, **prefix)
    model(IMAGES).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    placed = ("blocks.2.attention.locality.", *(["blocks.2.attention.values."] if values == "lepe" else []))
    last = [name for name, _ in model.named_parameters() if name.startswith(placed)]
    assert silent == (last if prefix else [])
    assert len(model.localities()) == (0 if locality is None else 3)
    for decay in model.localities()[: 2 if prefix else 3]:
        for parameter in decay.parameters():
            assert (parameter.grad.flatten(1).abs().amax(-1) > 0 if parameter.ndim > 1 else parameter.grad != 0).all()
    assert len({id(decay) for decay in model.localities()}) == len(model.localities())


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("prefix", [{}, {"pool": "cls", "registers": 1}], ids=["mean", "cls"])
def test_layers_attend_with_their_lambda_and_prefix_tokens_undimmed(attention, prefix):
    """Each layer's outputs are those of its dense weights times its own lambda, which is 1 for prefix tokens."""
    model, count = vit(attention=attention, **FOCUSED, **prefix), 2 if prefix else 0
    seen = []
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.locality.raw_sigma)
        block.attention.backend.register_forward_hook(lambda m, args, out: seen.append((args[2], out)))
    positions = grid_positions((4, 3))
    squares = (positions[:, None] - positions).square().sum(-1)
    with torch.no_grad():
        for probe, (values, out), locality in zip(
            probe_attention(model, IMAGES), seen, model.localities(), strict=True
        ):
            decay = torch.ones(2, 12 + count, 12 + count)
            for h, (sigma, amplitude) in enumerate(zip(locality.sigma(), locality.amplitude(), strict=True)):
                decay[h, count:, count:] = amplitude * (-squares / (2 * sigma**2)).exp()
            torch.testing.assert_close(probe.effective_weights(), probe.weights() * decay)
            torch.testing.assert_close(reference.attend(probe.weights() * decay, values), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("name", LOCALITIES)
def test_a_normalised_locality_is_a_bias_of_the_logits(name, attention):
    """Each layer's outputs are those of its dense weights, with lambda in them, which sum to one."""
    model = vit(attention=attention, locality=name, locality_options={"normalised": True}, registers=1)
    seen = []
    for block in model.blocks:
        for parameter in block.attention.locality.parameters():
            torch.nn.init.uniform_(parameter, -2, -1)  # of a decay, narrow
        block.attention.backend.register_forward_hook(lambda m, args, out: seen.append((args[2], out)))
    with torch.no_grad():
        for probe, (values, out) in zip(probe_attention(model, IMAGES), seen, strict=True):
            weights = probe.effective_weights()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            assert (weights - probe.weights()).abs().max() > 0.01
            torch.testing.assert_close(reference.attend(weights, values), out, rtol=1e-4, atol=1e-5)


def test_without_a_locality_the_effective_weights_are_the_attention():
    probe = probe_attention(vit(), IMAGES)[1]
    assert torch.equal(probe.effective_weights(), probe.weights())


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_a_very_wide_lambda_of_amplitude_one_is_no_lambda(attention):
    wide = {"sigma": 5e4, "sigma_bounds": [1.0, 1e5]}
    model, plain = vit(attention=attention, locality="gaussian", locality_options=wide), vit(attention=attention)
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert all("locality" in name for name in missing.missing_keys)
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGES), plain(IMAGES), rtol=1e-4, atol=1e-5)
        model.localities()[1].raw_sigma.fill_(-20.0)  # a narrow one changes them
        assert (model(IMAGES) - plain(IMAGES)).abs().max() > 1e-4


@pytest.mark.parametrize("values", VALUE_MAPS)
def test_which_models_see_a_common_move(values):
    """Exact softmax and mean pooling: with a locality nothing does but the group action."""
    model = vit(encoding="rope-mixed", attention="softmax", **FOCUSED, values=values).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    positions = grid_positions((4, 3), dtype=torch.float64)
    with torch.no_grad():
        still, moved = (model(IMAGES.double(), positions + shift) for shift in (0.0, 0.37))
    change = float((still - moved).abs().max())
    assert change > 1e-3 if values == "group-action" else change < 1e-9


@pytest.mark.parametrize("values", VALUE_MAPS)
def test_a_folded_model_keeps_them(values):
    options = {"encoding": "cayley-string"} if values in ("group-action", "connection") else {}
    model = vit(encoding="cayley-string", **FOCUSED, values=values, value_options=options).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    with torch.no_grad():
        torch.testing.assert_close(fold(model)(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("values", VALUE_MAPS)
def test_mixed_precision(values, attention):
    """Close to float32, forward and backward."""
    model = vit(attention=attention, **FOCUSED, values=values)
    exact = model(IMAGES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(IMAGES)
    out.float().square().sum().backward()
    assert (out - exact).abs().max() < 0.05
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("size", [(4, 8), (32, 80)])
def test_other_sizes(size):
    model = vit(**FOCUSED, values="connection")
    assert torch.isfinite(model(torch.randn(1, 2, *size))).all()


def test_a_checkpoint_from_before_these_fields(tmp_path):
    """It loads, and it can be resumed under today's configuration."""
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"locality": "gausian"}, "unknown locality 'gausian'. Did you mean 'gaussian'"),
        ({"locality": "gaussian", "locality_options": {"sigmas": 2}}, "no option 'sigmas'. Did you mean 'sigma'"),
        ({"locality_options": {"sigma": 2}}, "options of a locality, .*, but none is named. Known: gaussian"),
        ({"values": "gateing"}, "unknown value map 'gateing'. Did you mean 'gating'"),
        ({"value_options": {"source": "query"}}, "options of a value map, .*, but none is named. Known: gating"),
        ({"locality": "gaussian", "attention": "performer-pytorch"}, 'has no locality; use "linear" or "softmax"'),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        vit(**changes)


def test_the_layer_itself_says_what_it_needs():
    options = {"feature_map": "favor+", "seed": 0, "feature_options": {}}
    focused = ViT(ViTConfig(16, 4, variant="micro", locality="gaussian")).blocks[0].attention.locality
    for attention, given, message in (
        ("softmax", {}, "needs the positions of its tokens"),
        ("performer-pytorch", {"positions": torch.zeros(5, 2)}, "has no locality"),
    ):
        attend = build_attention(attention, head_dim=4, num_heads=4, **options)
        rotation = build_encoding("rope-mixed", head_dim=4, num_heads=4)(torch.zeros(5, 2))
        layer = SelfAttention(16, 4, attend, locality=focused)
        with pytest.raises(ValueError, match=message):
            layer(torch.randn(1, 5, 16), rotation, TokenLayout(**given))


@pytest.mark.parametrize("options", [{"num_heads": 3}, {"grid": [2, 2]}], ids=str)
def test_what_the_model_itself_gives_is_no_option(options):
    with pytest.raises(ValueError, match=f"locality_options cannot have '{next(iter(options))}', which the model"):
        vit(locality="table", locality_options=options)


def test_what_a_locality_has_to_log():
    assert set(vit(locality="radial").localities()[0].learned()) == {"sigma", "amplitude"}
    normalised = {"normalised": True}
    assert set(vit(locality="radial", locality_options=normalised).localities()[0].learned()) == {"sigma"}


@pytest.mark.parametrize("name", LOCALITIES)
def test_the_figure_shows_each_heads_kernel_over_the_offsets(name):
    model = vit(locality=name)
    torch.nn.init.normal_(next(model.localities()[1].parameters()))
    figure = locality_figure(model)
    panels = [axes.images[0].get_array() for axes in figure.axes]
    assert len(panels) == 3 * 2
    h, w = model.train_grid
    assert panels[0].shape == (2 * h - 1, 2 * w - 1)
    offset = torch.tensor([1.0, -2.0])
    wanted = model.localities()[1].of_offsets(offset).log()
    assert [float(panel[h, w - 3]) for panel in panels[2:4]] == pytest.approx(wanted.tolist(), rel=1e-4)
    assert locality_figure(vit()) is None
