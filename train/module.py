"""The classifier that Lightning trains: loss, optimiser, schedule and metrics."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import MeanMetric, Metric

from performer_string import ViT, ViTConfig
from performer_string.images.preprocessing import Outputs
from performer_string.models.config.saved_options import without_unused
from performer_string.utils.registry import lookup
from performer_string.utils.renames import current_fields
from train.augmentation import build_mixes, mix_images, random_positions, random_size
from train.data.module import ImageData
from train.distill import DistillationConfig, Teacher
from train.loss import LOSSES, LossConfig, class_weights
from train.metrics import metrics_of, plain_losses, update_metric
from train.optim import OPTIMIZERS, OptimConfig, learning_rate
from train.parameter_groups import check_parts, encoding_penalty, freeze_others, parameter_groups
from train.targets import check_dense, check_outputs

REMEDIES = (
    "Try a lower --model.optim.lr, --trainer.precision 32-true, --trainer.gradient_clip_val 1.0 or "
    "--model.vit.qk_norm true."
)


class NonFiniteLossError(RuntimeError):
    """The loss or a weight is infinite or NaN."""


def plain_settings(
    vit: ViTConfig,
    optim: OptimConfig,
    resolutions: list[str],
    distillation: DistillationConfig = DistillationConfig(),  # noqa: B008
    loss: LossConfig = LossConfig(),  # noqa: B008
) -> dict[str, Any]:
    """Return the settings of a classifier as plain values, as stored in checkpoints."""
    return {
        "vit": asdict(vit),
        "optim": {**asdict(optim), "betas": list(optim.betas)},  # YAML has no tuples
        "resolutions": resolutions,
        "distillation": asdict(distillation),
        "loss": asdict(loss),
    }


class ImageClassifier(L.LightningModule):
    """A ViT as Lightning module, with its loss, optimiser and metrics.

    The configurations may be mappings, since Lightning's `load_from_checkpoint` passes mappings.

    Args:
        vit: configuration of the model.
        optim: settings of the training.
        resolutions: names of the sizes of the validation sets, the training size first.
        distillation: settings of the distillation from a teacher.
        loss: settings of the loss, which `training_loss` computes; a subclass may override it.

    Raises:
        ValueError: incompatible settings.
    """

    def __init__(
        self,
        vit: ViTConfig,
        optim: OptimConfig = OptimConfig(),  # noqa: B008
        resolutions: list[str] | None = None,
        distillation: DistillationConfig = DistillationConfig(),  # noqa: B008
        loss: LossConfig = LossConfig(),  # noqa: B008
    ):
        super().__init__()
        vit = ViTConfig(**without_unused(current_fields(vit))) if isinstance(vit, dict) else vit
        optim = OptimConfig(**current_fields(optim)) if isinstance(optim, dict) else optim
        if isinstance(distillation, dict):
            distillation = DistillationConfig(**distillation)
        loss = LossConfig(**loss) if isinstance(loss, dict) else loss
        self.vit, self.optim, self.distillation, self.loss_config = ViT(vit), optim, distillation, loss
        self.class_weights: Tensor | None = None  # set at the start of a training
        self.teacher: Teacher | None = None  # set at the start of a training
        self.validated_split = "val"  # set at the start of a training or validation
        self.step_seed: int | None = None  # set before each step, the same in all processes
        self.resolutions = resolutions or ["train"]
        self.check_settings()
        # plain values only: a checkpoint loads with weights_only=True
        self.save_hyperparameters(plain_settings(vit, self.optim, self.resolutions, distillation, loss))
        self.val_loss = nn.ModuleList(MeanMetric(nan_strategy="disable") for _ in self.resolutions)  # a NaN counts
        self.mixes = build_mixes(self.optim, vit.num_classes)
        self.build_metrics("class")

    def build_metrics(self, outputs: Outputs) -> None:
        """Build the metrics of a model with these outputs, as in `Preprocessing`; those of the data are known later."""
        c = self.vit.config
        build = metrics_of(outputs, c.head, c.num_classes)
        self.outputs, self.main = outputs, next(iter(build))  # `main` is logged in training and for `watch_test`
        lists = {name: nn.ModuleList(make() for _ in self.resolutions) for name, make in build.items()}
        self.metrics = nn.ModuleDict(lists)
        self.train_metric, self.test_metric = build[self.main](), build[self.main]()

    def check_settings(self) -> None:
        """Raise a ValueError for incompatible settings of the model and its training."""
        vit = self.vit.config
        extrapolates = vit.positions == "extrapolate" and self.vit.encoding.extrapolates and self.vit.absolute is None
        if self.optim.randomized_positions > 1 and not extrapolates:
            raise ValueError(
                f"randomized_positions draws positions beyond the training grid, which positions={vit.positions!r} "
                f'with the encoding {vit.encoding!r} never are: use positions "extrapolate", an encoding that '
                f"extrapolates, and no absolute_table."
            )
        if self.optim.redraw_every and vit.feature_options.get("learned"):
            raise ValueError(
                "redraw_every draws new random features, and learned ones are trained: give one of the two."
            )
        check_parts(self.vit, self.optim.train_only)
        if vit.head == "dense":
            check_dense(self.optim, self.distillation, self.loss_config)
        if vit.num_classes < (2 if self.loss_config.name == "cross-entropy" else 1):
            raise ValueError(
                f"a classifier needs num_classes of 2 or more, not {vit.num_classes}. (The weights of a model "
                f"without a head: ViT.from_checkpoint, or --init_from for a model with one. One number or label an "
                f"image: another --model.loss.name, see docs/guides/other-targets.md.)"
            )

    def forward(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return logits [B, classes], or [B, classes, H, W] of a dense head. Arguments are those of `ViT`."""
        return cast(Tensor, self.vit(images, positions))

    def setup(self, stage: str) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.validated_split = data.validated_split() if isinstance(data, ImageData) else "val"
        if isinstance(data, ImageData) and data.outputs != self.outputs:
            self.build_metrics(data.outputs)
        if stage == "fit" and isinstance(data, ImageData):
            check_outputs(self.outputs, self.optim, self.distillation, self.loss_config)
            self.vit.preprocessing = data.preprocessing()
            self.class_weights = class_weights(self.loss_config, self.vit.config.num_classes, data.train_labels())
        if stage == "fit" and self.distillation.teacher:
            self.teacher = Teacher(self.distillation, self.vit, data, self.optim.image_scale)
        if stage == "fit":
            freeze_others(self.vit, self.optim.train_only)  # before the optimiser takes the weights that are left
            if self.optim.grad_checkpointing:
                self.vit.set_grad_checkpointing()

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.to(self.device)
        if self.optim.redraw_every and not any(backend.has_random_features for backend in self.vit.backends()):
            rank_zero_info("redraw_every has no effect: this model's attention has no random features.")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        every = self.optim.redraw_every
        if every and self.global_step and self.global_step % every == 0:
            self.vit.redraw(self.global_step)

    def forward_with_teacher(self, images: Tensor, positions: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [B, classes] in float32, and the teacher's terms of the loss by name."""
        if self.teacher is None:
            return self(images, positions).float(), {}
        return self.teacher.losses(self.vit, images, positions)

    def training_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch. A subclass may override this.

        Args:
            logits: logits in float32, [B, classes], or [B, classes, H, W] of a dense head.
            targets: classes [B], or probabilities [B, classes] of mixed images; classes [B, H, W] for a dense head;
                labels or numbers [B, n] of a source that has these.
        """
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        smoothing = self.optim.label_smoothing
        return lookup("loss", self.loss_config.name, LOSSES)(logits, targets, weights, smoothing, self.loss_config)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, targets = random_size(batch[0], self.vit, self.optim.image_scale, self.step_seed), batch[1]
        images, mixed = mix_images(self.mixes, images, targets)
        logits, terms = self.forward_with_teacher(images, random_positions(images, self.vit, self.optim))
        labels = self.training_loss(logits, mixed)
        loss = labels if self.teacher is None else (1 - self.distillation.weight) * labels + sum(terms.values())
        if self.optim.encoding_l2:
            loss = loss + encoding_penalty(self.vit, self.optim.encoding_l2).to(loss.device)
        if not torch.isfinite(loss):
            raise NonFiniteLossError(
                f"the loss is {loss.item()} at step {self.global_step}, so that training stopped; the weights are "
                f"those of the last finite step. {REMEDIES}"
            )
        if not self.mixes and self.outputs == "class":  # mixed images have no single right class
            self.train_metric(logits, targets)
            self.log("train/accuracy", self.train_metric, prog_bar=True, on_step=True, on_epoch=False)
        self.log("train/loss", loss, prog_bar=True)
        for name, term in terms.items():
            self.log(f"train/loss_of_{name}", term)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx == len(self.resolutions):  # the test images, for `data.watch_test`
            update_metric(self.test_metric, self.outputs, self(batch[0]).float(), batch[1])
            self.log(f"test/{self.main}", self.test_metric, add_dataloader_idx=False)
            return
        logits = self.score(self.validated_split, batch, dataloader_idx)
        loss = cast(MeanMetric, self.val_loss[dataloader_idx])
        losses = plain_losses(self.outputs, logits, batch[1])
        known = (batch[1] >= 0).float() if self.outputs == "class" else torch.ones_like(losses)
        loss.update(losses, weight=known)
        self.log(f"{self.validated_split}/loss_{self.resolutions[dataloader_idx]}", loss, add_dataloader_idx=False)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.score("test", batch, dataloader_idx, overall=False)

    def score(self, split: str, batch: tuple[Tensor, Tensor], index: int, overall: bool = True) -> Tensor:
        """Return the logits of a batch at a resolution, and log its metrics, `overall` those of the first as well."""
        logits = self(batch[0]).float()
        for name, metrics in self.metrics.items():
            metric = cast(Metric, cast(nn.ModuleList, metrics)[index])
            update_metric(metric, self.outputs, logits, batch[1])
            self.log(f"{split}/{name}_{self.resolutions[index]}", metric, add_dataloader_idx=False)
            if index == 0 and overall:
                self.log(f"{split}/{name}", metric, prog_bar=True, add_dataloader_idx=False)
        return logits

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["classifier"] = type(self).__qualname__
        if self.vit.preprocessing is not None:
            checkpoint["preprocessing"] = self.vit.preprocessing.plain()
        if self.teacher is not None:
            checkpoint["teacher"] = self.teacher.squares

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.teacher is not None:
            self.teacher.check_same(checkpoint.get("teacher"))

    def configure_optimizers(self) -> Any:
        c = self.optim
        optimizer = lookup("optimiser", c.optimizer, OPTIMIZERS)(parameter_groups(self.vit, c), c)
        steps = float(self.trainer.estimated_stepping_batches)
        if not math.isfinite(steps):
            raise ValueError(
                "the learning rate follows a cosine to the end of the training, which must be known: give "
                "--trainer.max_epochs or --trainer.max_steps, beside --trainer.max_time where there is one."
            )
        schedule = LambdaLR(optimizer, lambda step: learning_rate(step, steps, c.warmup, c.min_lr))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
