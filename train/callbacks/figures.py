"""Figures of what a model has learned, for TensorBoard, after each validation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from performer_string import ViT
from performer_string.position import SeparableEncoding
from train.callbacks.metrics import tensorboard
from train.inspection import AttentionInputs, inspect_attention

IMAGES = 4  # of the first validation batch
LARGEST = 1024  # tokens beyond which a dense N x N attention matrix is not drawn up


def estimator_error(layer: AttentionInputs) -> Tensor:
    """Return the mean total variation between attention and the exact softmax of the same logits, 0 to 1."""
    return (layer.weights() - layer.exact_weights()).abs().sum(-1).mean() / 2


class ModelFigures(Callback):
    """Log the error against exact softmax, attention maps, frequencies, and what relative biases have learned.

    What needs images is computed on the first of the first validation batch, in evaluation mode. It takes a second for
    a small model, and ten for a large one.

    Args:
        every: validations from one set to the next, 1 for each.
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
        # The step that was taken last, counted from 0, as of all that validation logs.
        step, numbers, figures = max(0, trainer.global_step - 1), dict(locality_scalars(vit)), {}
        grid = vit.grid(*self.batch.shape[2:])
        if math.prod(grid) <= LARGEST:
            layers = inspect_attention(vit, self.batch)
            errors = [float(estimator_error(layer)) for layer in layers if not layer.backend.rotates_features]
            if errors:
                numbers["vit_estimator/total_variation_to_softmax"] = sum(errors) / len(errors)
            numbers |= {f"vit_estimator/layer_{layer}": error for layer, error in enumerate(errors)}
            if writer is not None and len(grid) == 2:
                figures["attention"] = attention_figure(vit, self.batch[0], layers, grid)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step)
        if writer is not None:
            figures["frequencies"], figures["locality"] = frequency_figure(vit), locality_figure(vit)
            for name, figure in figures.items():
                if figure is not None:
                    writer.add_figure(f"vit_figures/{name}", figure, step)  # behind train and val


def locality_scalars(vit: ViT) -> Iterator[tuple[str, float]]:
    """Yield what each relative bias has learned, by layer and head: of a decay, sigma in patches and the amplitude."""
    for layer, locality in enumerate(vit.localities()):
        for name, learned in locality.learned().items():
            for head, value in enumerate(learned.tolist()):
                yield f"vit_locality_{name}/layer_{layer}_head_{head}", value


def attention_figure(vit: ViT, image: Tensor, layers: list[AttentionInputs], grid: tuple[int, ...]) -> Any:
    """Return maps of the attention of the token that the last layer attends to most, by layer (rows) and head."""
    from matplotlib.figure import Figure

    maps = [layer.of_image(0).effective_weights()[0].float() for layer in layers]  # of [H, N, N]
    skip = vit.num_prefix
    token = int(maps[-1][:, :, skip:].sum((0, 1)).argmax())
    rows, columns = len(maps), maps[0].shape[0]
    figure = Figure(figsize=(1.6 * (columns + 1), 1.7 * rows))
    axes = figure.subplots(rows, columns + 1, squeeze=False)
    shown = image.float().mean(0).cpu()
    for layer, weights in enumerate(maps):
        axes[layer][0].imshow(shown, cmap="gray")
        y, x = token // grid[1] + 0.5, token % grid[1] + 0.5
        axes[layer][0].plot(x * vit.patch[1], y * vit.patch[0], "r+", markersize=10)
        axes[layer][0].set_ylabel(f"layer {layer}")
        for head in range(columns):
            attended = weights[head, skip + token, skip:].reshape(grid)  # [N] -> [h, w]
            axes[layer][head + 1].imshow(attended.cpu(), cmap="viridis")
            axes[layer][head + 1].set_title(f"head {head}, max {attended.max():.2g}", fontsize=7)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    return figure


def locality_figure(vit: ViT) -> Any:
    """Return maps of log lambda over the offsets of the training grid, by layer (rows) and head (columns).

    None without a relative bias, or in other than two dimensions.
    """
    from matplotlib.figure import Figure

    biases = vit.localities()
    if not biases or len(vit.train_grid) != 2:
        return None
    (h, w), rows, columns = vit.train_grid, len(biases), biases[0].num_heads
    axes = (torch.arange(1 - n, n, dtype=torch.float32) for n in (h, w))
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).to(vit.norm.weight.device)
    figure = Figure(figsize=(1.6 * columns, 1.7 * rows))
    panels = figure.subplots(rows, columns, squeeze=False)
    for layer, bias in enumerate(biases):
        logs = bias.log_of_offsets(offsets).detach().float().cpu()  # [H or 1, 2 h - 1, 2 w - 1]
        for head, values in enumerate(logs.expand(columns, -1, -1)):
            panels[layer][head].imshow(values, cmap="viridis", extent=(-w + 0.5, w - 0.5, h - 0.5, -h + 0.5))
            panels[layer][head].set_title(f"{values.min():.1f} to {values.max():.1f}", fontsize=7)
            panels[layer][head].set(xticks=[], yticks=[])
        panels[layer][0].set_ylabel(f"layer {layer}")
    figure.tight_layout()
    return figure


def frequency_figure(vit: ViT) -> Any:
    """Return plane frequencies of each layer as points: two axes, one colour a head. None without planes."""
    from matplotlib.figure import Figure

    if not isinstance(vit.encoding, SeparableEncoding):
        return None
    spectra = vit.encoding.frequencies().float().cpu().chunk(vit.encoding.layers)
    figure = Figure(figsize=(2.4 * len(spectra) + 0.9, 2.6), layout="constrained")
    axes = figure.subplots(1, len(spectra), squeeze=False, sharex=True, sharey=True)[0]
    for layer, (axis, omega) in enumerate(zip(axes, spectra, strict=True)):
        for number, head in enumerate(omega):  # [C, P]
            axis.scatter(head[-1], head[0], s=8, alpha=0.7, label=f"head {number}" if len(omega) > 1 else "all heads")
        axis.set(title=f"layer {layer}" if len(spectra) > 1 else "all layers", xlabel="radians / patch, across")
    axes[0].set_ylabel("radians / patch, down")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=7, frameon=False, ncols=1 + len(labels) // 9)
    return figure
