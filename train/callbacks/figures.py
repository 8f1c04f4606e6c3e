"""Log figures of a model's attention, frequencies and biases to TensorBoard after validations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from performer_string import ViT
from performer_string.layers.inspection import AttentionInputs, inspect_attention
from performer_string.position import SeparableEncoding
from train.callbacks.metrics import tensorboard
from train.figure_style import STYLE, VERMILLION, colour_and_marker

IMAGES = 4  # number of images from the first validation batch
LARGEST = 1024  # most tokens for a dense N x N attention matrix


def estimator_error(layer: AttentionInputs) -> Tensor:
    """Return the mean total variation between attention and exact softmax of the same logits, from 0 to 1."""
    return (layer.weights() - layer.exact_weights()).abs().sum(-1).mean() / 2


class ModelFigures(Callback):
    """Log the error to exact softmax, attention maps, frequencies and learned relative biases.

    Errors and maps are computed on images of the first validation batch, in evaluation mode. That takes a second for a
    small model, and ten for a large one.

    Args:
        every: number of validations per set of figures; 1 logs figures after each validation.
    """

    def __init__(self, every: int = 1):
        self.every = every
        self.validations = 0
        self.batch: Tensor | None = None

    def state_dict(self) -> dict[str, int]:
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.validations = state_dict["validations"]

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx == dataloader_idx == 0:
            self.batch = batch[0][:IMAGES].detach()

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Log numbers to every logger and figures to TensorBoard."""
        writer, vit = tensorboard(trainer), module.vit
        assert isinstance(vit, ViT)
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self.validations += 1
        due = (self.validations - 1) % self.every == 0
        if not due or not trainer.loggers or not trainer.is_global_zero or self.batch is None:
            return
        # The index of the last step, from 0, as for all metrics of validation.
        step, numbers = max(0, trainer.global_step - 1), dict(locality_scalars(vit))
        figures: dict[str, Callable[[ViT], Any]] = {}
        grid = vit.grid(*self.batch.shape[2:])
        if math.prod(grid) <= LARGEST:
            layers = inspect_attention(vit, self.batch)
            errors = [float(estimator_error(layer)) for layer in layers if not layer.backend.rotates_features]
            if errors:
                numbers["vit_estimator/total_variation_to_softmax"] = sum(errors) / len(errors)
            numbers |= {f"vit_estimator/layer_{layer}": error for layer, error in enumerate(errors)}
            if writer is not None and len(grid) == 2:
                figures["attention"] = partial(attention_figure, image=self.batch[0], layers=layers, grid=grid)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step)
        if writer is not None:
            figures["frequencies"], figures["locality"] = frequency_figure, locality_figure
            with in_style():
                for name, draw in figures.items():
                    if (figure := draw(vit)) is not None:
                        writer.add_figure(f"vit_figures/{name}", figure, step)  # sorted after train and val


def locality_scalars(vit: ViT) -> Iterator[tuple[str, float]]:
    """Yield the learned scalars of each relative bias by layer and head, such as a decay's sigma and amplitude."""
    for layer, locality in enumerate(vit.localities()):
        for name, learned in locality.learned().items():
            for head, value in enumerate(learned.tolist()):
                yield f"vit_locality_{name}/layer_{layer}_head_{head}", value


def in_style() -> AbstractContextManager[None]:
    """Draw and write figures in the project's style."""
    import matplotlib

    return matplotlib.rc_context(fname=STYLE)


def attention_figure(vit: ViT, image: Tensor, layers: list[AttentionInputs], grid: tuple[int, ...]) -> Any:
    """Return attention maps of the token with the most attention in the last layer, by layer (rows) and head.

    The maps of a layer share a scale from 0 to the largest weight. The image is to the left of the first map.
    """
    from matplotlib.figure import Figure

    maps = [layer.of_image(0).effective_weights()[0].float() for layer in layers]  # [H, N, N] each
    skip = vit.num_prefix
    token = int(maps[-1][:, :, skip:].sum((0, 1)).argmax())
    rows, columns = len(maps), maps[0].shape[0]
    figure = Figure(figsize=(1.6 * (columns + 1) + 0.8, 1.7 * rows), layout="constrained")
    cells = figure.add_gridspec(rows, columns + 1)
    shown = figure.add_subplot(cells[0, 0])
    shown.imshow(image.float().mean(0).cpu().numpy(), cmap="gray")
    y, x = token // grid[1] + 0.5, token % grid[1] + 0.5
    shown.plot(x * vit.patch[1], y * vit.patch[0], "+", color=VERMILLION, markersize=10)
    shown.set_title("attention of the token at +", fontsize=7)
    for layer, weights in enumerate(maps):
        attended = weights[:, skip + token, skip:].unflatten(1, grid).cpu()  # [H, N] -> [H, h, w]
        highest = float(attended.nan_to_num().max())  # finite also after divergence
        axes = [figure.add_subplot(cells[layer, head + 1]) for head in range(columns)]
        for head, axis in enumerate(axes):
            drawn = axis.imshow(attended[head].numpy(), vmin=0, vmax=highest or 1)
            axis.set_title(f"head {head}, max {attended[head].max():.2g}", fontsize=7)
        axes[0].set_ylabel(f"layer {layer}")
        figure.colorbar(drawn, ax=axes, label="weight", fraction=0.05, aspect=12)
        for axis in (shown, *axes):
            axis.set(xticks=[], yticks=[])
    return figure


def locality_figure(vit: ViT) -> Any:
    """Return maps of the log bias over the offsets of the training grid, by layer (rows) and head (columns).

    None without a relative bias, or in dimensions other than two.
    """
    from matplotlib.figure import Figure

    biases = vit.localities()
    if not biases or len(vit.train_grid) != 2:
        return None
    (h, w), rows, columns = vit.train_grid, len(biases), biases[0].num_heads
    axes = (torch.arange(1 - n, n, dtype=torch.float32) for n in (h, w))
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).to(vit.norm.weight.device)
    figure = Figure(figsize=(1.6 * columns, 1.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for layer, bias in enumerate(biases):
        logs = bias.log_of_offsets(offsets).detach().float().cpu()  # [H or 1, 2 h - 1, 2 w - 1]
        for head, values in enumerate(logs.expand(columns, -1, -1)):
            panels[layer][head].imshow(values, extent=(-w + 0.5, w - 0.5, h - 0.5, -h + 0.5))
            panels[layer][head].set_title(f"{values.min():.1f} to {values.max():.1f}", fontsize=7)
            panels[layer][head].set(xticks=[], yticks=[])
        panels[layer][0].set_ylabel(f"layer {layer}")
    return figure


def frequency_figure(vit: ViT) -> Any:
    """Return the frequencies of each layer as points over two axes, by head; None for encodings without them."""
    from matplotlib.figure import Figure

    if not isinstance(vit.encoding, SeparableEncoding):
        return None
    spectra = vit.encoding.frequencies().float().cpu().chunk(vit.encoding.layers)
    figure = Figure(figsize=(2.4 * len(spectra) + 0.9, 2.6), layout="constrained")
    axes = figure.subplots(1, len(spectra), squeeze=False, sharex=True, sharey=True)[0]
    for layer, (axis, omega) in enumerate(zip(axes, spectra, strict=True)):
        for number, head in enumerate(omega):  # [C, P]
            label = f"head {number}" if len(omega) > 1 else "all heads"
            style = {**colour_and_marker(number), "linestyle": "none", "markersize": 3, "alpha": 0.7}
            axis.plot(head[-1], head[0], label=label, **style)
        axis.set(title=f"layer {layer}" if len(spectra) > 1 else "all layers", xlabel="radians / patch, across")
    axes[0].set_ylabel("radians / patch, down")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", ncols=1 + len(labels) // 9)
    return figure
