"""A whole training against its definition in plain torch: loss, mixes, redraws, clipping, AdamW, schedule, average."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from performer_string import ViT
from performer_string.utils.seeds import derive_seed
from tests.helpers.training import last
from train import cli
from train.checkpoint_file import read_checkpoint
from train.data.module import ImageData
from train.module import ImageClassifier

pytestmark = pytest.mark.slow  # training runs


SEED, STEPS = 3, 20  # two epochs
OPTIONS = {
    "trainer.max_epochs": "2",
    "trainer.gradient_clip_val": "0.7",
    "ema": "0.6",  # reached by the warm-up of the decay after 13 steps
    "data.mean": "[0.25]",
    "data.std": "[0.4]",
    "model.vit.feature_map": "favor+",
    "model.vit.feature_options": "{num_features: 16}",
    "model.vit.key_gate": "true",
    "model.optim.lr": "0.02",
    "model.optim.weight_decay": "0.3",
    "model.optim.betas": "[0.7, 0.95]",
    "model.optim.warmup": "0.25",
    "model.optim.min_lr": "0.1",
    "model.optim.label_smoothing": "0.1",
    "model.optim.mixup": "0.4",
    "model.optim.cutmix": "0.7",
    "model.optim.redraw_every": "6",
    "model.optim.randomized_positions": "1",
    "model.optim.position_scale": "1",
    "model.optim.position_offset": "0",
}


def share(step: int) -> float:
    """Of the learning rate: 5 steps up, then a cosine down to a tenth over 15."""
    return (step + 1) / 5 if step < 5 else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 5) / 15)) / 2


def definition(vit: ViT, batches: list[tuple[Tensor, Tensor]]) -> tuple[ViT, ViT]:
    """The model after these steps, and the average of its weights."""
    linear = [m.weight for m in vit.modules() if isinstance(m, nn.Linear)]
    others = [p for p in vit.parameters() if all(p is not w for w in linear)]
    groups = [{"params": linear, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer, average = torch.optim.AdamW(groups, betas=(0.7, 0.95)), vit
    for step, (images, classes) in enumerate(batches):
        if step in (6, 12, 18):
            vit.redraw(step)
        torch.manual_seed(derive_seed(SEED, "step", step, 0))
        mix = (v2.MixUp(alpha=0.4, num_classes=4), v2.CutMix(alpha=0.7, num_classes=4))[int(torch.randint(2, ()))]
        x, shares = mix((images.float() / 255 - 0.25) / 0.4, classes)  # shares [B, 4]
        smooth = 0.9 * shares + 0.1 / 4
        loss = -(smooth * F.log_softmax(vit(x), dim=-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in vit.parameters()]).norm()
        for p in vit.parameters():
            p.grad *= min(1.0, 0.7 / float(norm))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * share(step)
        optimizer.step()
        if step == 0:
            average = copy.deepcopy(vit)
        else:
            for mean, p in zip(average.parameters(), vit.parameters(), strict=True):
                decay = min(0.6, (1 + step) / (10 + step))
                mean.data.mul_(decay).add_(p.data, alpha=1 - decay)
    return vit, average


def test_training_matches_definition(config, tmp_path, monkeypatch):
    start: list[ViT] = []
    batches: list[tuple[Tensor, Tensor]] = []
    transfer = ImageData.on_after_batch_transfer

    def record(self, batch, index):
        if self.trainer.training:
            batches.append((batch[0].clone(), batch[1].clone()))
        return transfer(self, batch, index)

    monkeypatch.setattr(ImageData, "on_after_batch_transfer", record)
    monkeypatch.setattr(ImageClassifier, "on_train_start", lambda self: start.append(copy.deepcopy(self.vit)))
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    cli.run(["fit", "--config", str(config), "--run_dir", str(tmp_path / "run"), *options])
    assert len(batches) == STEPS
    assert batches[0][0].dtype == torch.uint8

    saved = read_checkpoint(last(tmp_path / "run"))
    result = {"state_dict": saved["state_dict"], "current_model_state": saved["current_model_state"]}
    vit, average = definition(start[0].train(), batches)
    for name, model in (("current_model_state", vit), ("state_dict", average)):
        for key, weight in model.named_parameters():
            # Twenty steps at this rate grow what two orders of rounding differ by to 1e-5.
            torch.testing.assert_close(
                result[name][f"vit.{key}"], weight.data, rtol=1e-4, atol=1e-4, msg=f"{name} {key}"
            )
    drawn = vit.backends()[1].phi.projection
    assert torch.equal(result["current_model_state"]["vit.blocks.1.attention.backend.phi.projection"], drawn)
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    rates = [event.value for event in events.Scalars("train/learning_rate")]
    assert rates == [float(torch.tensor(0.02 * share(step))) for step in range(STEPS)]
