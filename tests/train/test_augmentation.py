"""Random sizes and positions of a training step."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from performer_string import ViT, ViTConfig, grid_positions
from performer_string.utils.seeds import derive_seed
from train.augmentation import jitter_positions, random_positions, random_size
from train.callbacks.checkpoints import StepSeed
from train.module import ImageClassifier
from train.optim import OptimConfig

VIT = {"image_size": 60, "patch_size": 12, "in_channels": 1, "num_classes": 4, "width": 16, "depth": 2, "num_heads": 2}


GRID = grid_positions((5, 7))


def test_no_random_positions_by_default():
    assert torch.equal(jitter_positions(GRID, OptimConfig()), GRID)
    model = ImageClassifier(ViTConfig(**VIT), OptimConfig())
    assert random_positions(torch.zeros(2, 1, 60, 60), model.vit, model.optim) is None


@pytest.mark.parametrize("factor", [1.2, 2.0, 3.7])
def test_randomized_positions_are_increasing_subsets_of_a_larger_grid(factor):
    recorded = set()
    for _ in range(200):
        drawn = jitter_positions(GRID, OptimConfig(randomized_positions=factor)).reshape(5, 7, 2)  # [N, 2] -> [h, w, 2]
        for axis, cells in ((0, 5), (1, 7)):
            line = drawn.select(1 - axis, 0)[:, axis]
            assert (line.diff() >= 1).all()
            assert torch.equal(line, line.round())
            assert 0 <= line.min() <= line.max() <= round(factor * cells) - 1
            assert (drawn[..., axis] == drawn[..., axis].select(1 - axis, 0).unsqueeze(1 - axis)).all()
            recorded |= {(axis, int(r)) for r in line}
    assert recorded == {(axis, r) for axis, n in ((0, 5), (1, 7)) for r in range(round(factor * n))}


def test_drawn_grid_factor_covers_all_sizes_and_the_plain_grid():
    config = OptimConfig(randomized_positions=2.0, randomized_positions_min=1.0)
    drawn = [jitter_positions(GRID, config) for _ in range(2000)]
    assert 0.05 < sum(torch.equal(x, GRID) for x in drawn) / 2000 < 0.2  # about where 7 f rounds to 7
    widths = torch.stack([x[:, 1].max() - x[:, 1].min() for x in drawn])
    assert set(widths.int().tolist()) == set(range(6, 14))
    fixed = [jitter_positions(GRID, OptimConfig(randomized_positions=2.0)) for _ in range(200)]
    assert not any(torch.equal(x, GRID) for x in fixed)


def test_scale_is_log_uniform_and_offset_is_a_common_move():
    factors = torch.stack([jitter_positions(GRID, OptimConfig(position_scale=2.0))[1:] / GRID[1:] for _ in range(400)])
    assert (factors.nan_to_num(-1).amax((1, 2)) - factors.nan_to_num(9).amin((1, 2))).max() < 1e-5
    logs = factors[:, -1, 0].log() / math.log(2)
    assert -1 <= logs.min() < -0.9
    assert 0.9 < logs.max() <= 1
    assert abs(logs.mean()) < 4.5 * (1 / 3 / 400) ** 0.5
    moves = torch.stack([jitter_positions(GRID, OptimConfig(position_offset=3.0)) - GRID for _ in range(400)])
    assert (moves - moves[:, :1]).abs().max() < 1e-5
    assert 2.8 < moves.abs().max() <= 3 + 1e-5
    assert (moves[:, 0, 0] - moves[:, 0, 1]).abs().max() > 1  # each axis its own


def test_positions_move_by_seed_in_training_only():
    model = ImageClassifier(ViTConfig(**{**VIT, "drop_path": 0.0}), OptimConfig(randomized_positions=2))
    recorded = []
    model.vit.register_forward_pre_hook(lambda module, args: recorded.append(args[1]))
    batch = torch.rand(2, 1, 60, 60), torch.tensor([0, 1])
    model.log = lambda *args, **kwargs: None
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model.training_step(batch, 0)
    model.validation_step(batch, 0)
    assert torch.equal(recorded[0], recorded[1])
    assert not torch.equal(recorded[0], recorded[2])
    assert recorded[3] is None


def test_centred_positions_stay_centred(monkeypatch):
    recorded = []
    model = ImageClassifier(
        ViTConfig(**{**VIT, "centred": True}), OptimConfig(randomized_positions=2, position_offset=3)
    )
    plain = model.vit.encoding.forward
    monkeypatch.setattr(model.vit.encoding, "forward", lambda positions: recorded.append(positions) or plain(positions))
    images = torch.zeros(2, 1, 60, 60)
    model(images, random_positions(images, model.vit, model.optim))
    assert recorded[0].mean(0).abs().max() < 1e-5


def test_random_sizes_are_log_uniform_whole_patches():
    model = ImageClassifier(ViTConfig(**VIT), OptimConfig(image_scale=2))
    images = torch.rand(1, 1, 240, 480)
    sizes = [tuple(random_size(images, model.vit, model.optim.image_scale).shape[-2:]) for _ in range(300)]
    assert all(height % 12 == 0 and width % 12 == 0 for height, width in sizes)
    assert all(abs(width - 2 * height) <= 12 for height, width in sizes)
    heights = torch.tensor([float(height) for height, _ in sizes])
    assert (heights.min(), heights.max()) == (120, 480)
    logs = (heights / 240).log() / math.log(2)
    assert abs(logs.mean()) < 4.5 * (1 / 3 / 300) ** 0.5 + 0.05  # the standard error, and the rounding


def test_resized_image_shows_the_same():
    model = ImageClassifier(ViTConfig(**VIT), OptimConfig(image_scale=1.5))
    ramp = torch.linspace(0, 1, 60).expand(2, 1, 60, 60)
    for _ in range(10):
        resized = random_size(ramp, model.vit, model.optim.image_scale)
        width = resized.shape[-1]
        expected = ((torch.arange(width) + 0.5) * 60 / width - 0.5) / 59
        inner = slice(width // 8, -width // 8)
        torch.testing.assert_close(resized[1, 0, 3, inner], expected[inner], rtol=0, atol=5e-3)


def test_sizes_change_by_seed_in_training_only():
    model = ImageClassifier(ViTConfig(**{**VIT, "positions": "interpolate"}), OptimConfig(image_scale=3))
    recorded = []
    model.vit.register_forward_pre_hook(lambda module, args: recorded.append(args[0].shape[-1]))
    batch = torch.rand(2, 1, 60, 60), torch.tensor([0, 1])
    model.log = lambda *args, **kwargs: None
    for seed in (1, 1, 2, 3):
        torch.manual_seed(seed)
        model.training_step(batch, 0)
    model.validation_step(batch, 0)
    assert recorded[0] == recorded[1]
    assert len(set(recorded[1:4])) > 1
    assert recorded[4] == 60


def test_all_ranks_draw_one_size_and_mixes_of_their_own():
    """The size is that of one process, which draws it first from the generator of its step."""
    model = ImageClassifier(ViTConfig(**{**VIT, "positions": "interpolate"}), OptimConfig(image_scale=3, mixup=0.5))
    model.log, sizes, mixed = (lambda *args, **kwargs: None), [], []
    model.vit.register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[-1]))
    model.training_loss = lambda logits, targets: mixed.append(targets[0, 0].item()) or logits.sum()
    batch, alone = (torch.rand(2, 1, 60, 60), torch.tensor([0, 1])), []
    for step in range(8):
        for rank in (0, 1):
            place = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=step))
            StepSeed(7).on_train_batch_start(SimpleNamespace(fit_loop=place, global_rank=rank), model, batch, 0)
            model.training_step(batch, 0)
        torch.manual_seed(derive_seed(7, "step", step, 0))
        alone.append(random_size(batch[0], model.vit, 3).shape[-1])
    assert sizes[::2] == sizes[1::2] == alone
    assert len(set(alone)) > 2
    assert len(set(mixed)) == 16


def test_scale_of_one_keeps_images():
    images = torch.rand(1, 1, 60, 60)
    assert random_size(images, ViT(ViTConfig(**VIT)), 1.0) is images


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_videos_are_mixed_as_images_are(name, monkeypatch):
    """By the same share, or with the same cut, in all frames."""
    video = {**VIT, "image_size": [4, 24, 24], "patch_size": [2, 12, 12]}
    module = ImageClassifier(ViTConfig(**video), OptimConfig(**{name: 1.0}))
    given, mixed = torch.rand(3, 1, 1, 24, 24).expand(3, 1, 4, 24, 24), []
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    monkeypatch.setattr(module, "forward_with_teacher", lambda x, positions: mixed.append(x) or (torch.zeros(3, 4), {}))
    module.training_step((given, torch.tensor([0, 1, 2])), 0)
    assert mixed[0].shape == given.shape
    assert not torch.equal(mixed[0], given)
    assert torch.equal(mixed[0], mixed[0][:, :, :1].expand_as(given))
