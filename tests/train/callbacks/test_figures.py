"""Figures for TensorBoard: in the project's style, and read without colour or by one scale."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from performer_string import LOCALITIES, ViT, ViTConfig
from tests.helpers.small_vit import vit
from train.callbacks.figures import ModelFigures, locality_figure
from train.figure_style import COLOURS


@pytest.fixture
def draw(monkeypatch):
    """Return a function of a model that returns its figures by name, as TensorBoard's writer gets and draws them."""

    def figures(vit):
        drawn = {}

        def add_figure(name, figure, step):
            FigureCanvasAgg(figure).draw()
            drawn[name.removeprefix("vit_figures/")] = figure

        monkeypatch.setattr("train.callbacks.figures.tensorboard", lambda _: SimpleNamespace(add_figure=add_figure))
        logger = SimpleNamespace(log_metrics=lambda *_: None)
        trainer = SimpleNamespace(sanity_checking=False, state=SimpleNamespace(fn=TrainerFn.FITTING), global_step=1)
        trainer.loggers, trainer.is_global_zero = [logger], True
        callback, module = ModelFigures(), SimpleNamespace(vit=vit)
        callback.on_validation_batch_end(trainer, module, None, (torch.randn(4, 3, 16, 24),), 0)
        callback.on_validation_epoch_end(trainer, module)
        return drawn

    return figures


def model(**options) -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig((16, 24), 8, num_heads=3, width=24, depth=2, **options))


def test_heads_have_a_safe_colour_and_a_marker_each(draw):
    figure = draw(model(encoding="rope-mixed"))["frequencies"]
    for axis in figure.axes:
        assert [to_hex(line.get_color()) for line in axis.lines] == [colour.lower() for colour in COLOURS[:3]]
        assert len({line.get_marker() for line in axis.lines}) == 3
        assert not axis.spines["top"].get_visible()  # in the project's style
    assert [text.get_text() for text in figure.legends[0].texts] == ["head 0", "head 1", "head 2"]


@pytest.mark.parametrize("diverged", [False, True])
def test_the_maps_of_a_layer_share_a_scale_with_a_bar(draw, diverged):
    """The image stands there once."""
    vit = model()
    if diverged:
        vit.norm.weight.data.fill_(float("nan"))
        vit.blocks[1].attention.qkv.weight.data.fill_(float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image, *rest = draw(vit)["attention"].axes
    assert image.images[0].get_array().shape == (16, 24)
    bars = [axis for axis in rest if axis.get_label() == "<colorbar>"]
    maps = [axis for axis in rest if axis not in bars]
    assert len(bars) == 2
    assert [axis.images[0].get_array().shape for axis in maps] == [(2, 3)] * 2 * 3
    for layer, bar in enumerate(bars):
        shown = [axis.images[0] for axis in maps[3 * layer : 3 * layer + 3]]
        assert {each.get_clim() for each in shown} == {bar.get_ylim()}
        highest = max(each.get_array().filled(0).max() for each in shown)
        assert bar.get_ylim() == (0, pytest.approx(highest or 1))


def test_figure_shows_lambda_of_each_head():
    for name in LOCALITIES:
        model = vit(locality=name)
        torch.nn.init.normal_(next(model.localities()[1].parameters()))
        figure = locality_figure(model)
        panels = [axes.images[0].get_array() for axes in figure.axes]
        assert len(panels) == 3 * 2
        h, w = model.train_grid
        assert panels[0].shape == (2 * h - 1, 2 * w - 1)
        offset = torch.tensor([1.0, -2.0])
        expected = model.localities()[1].of_offsets(offset).log()
        assert [float(panel[h, w - 3]) for panel in panels[2:4]] == pytest.approx(expected.tolist(), rel=1e-4)
    assert locality_figure(vit()) is None
