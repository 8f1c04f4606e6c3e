"""What a training step is made of: random positions, the learning rate, and which weights decay."""

from __future__ import annotations

import math

import pytest
import torch

from performer_string import ViT, ViTConfig, grid_positions
from train.module import ImageClassifier
from train.optim import OptimConfig, learning_rate, parameter_groups
from train.positions import jitter_positions

VIT = {"image_size": 60, "patch_size": 12, "in_channels": 1, "num_classes": 4, "width": 16, "depth": 2, "num_heads": 2}


class TestPositions:
    GRID = grid_positions((5, 7))

    def test_none_is_none(self):
        assert torch.equal(jitter_positions(self.GRID), self.GRID)
        model = ImageClassifier(ViTConfig(**VIT), OptimConfig())
        assert model.draw_positions(torch.zeros(2, 1, 60, 60)) is None

    @pytest.mark.parametrize("frame", [1.2, 2.0, 3.7])
    def test_a_frame_gives_each_axis_an_increasing_subset_of_a_larger_grid(self, frame):
        seen = set()
        for _ in range(200):
            drawn = jitter_positions(self.GRID, frame=frame).reshape(5, 7, 2)  # [N, 2] -> [h, w, 2]
            for axis, cells in ((0, 5), (1, 7)):
                line = drawn.select(1 - axis, 0)[:, axis]
                assert (line.diff() >= 1).all()
                assert torch.equal(line, line.round())
                assert 0 <= line.min() <= line.max() <= round(frame * cells) - 1
                assert (drawn[..., axis] == drawn[..., axis].select(1 - axis, 0).unsqueeze(1 - axis)).all()
                seen |= {(axis, int(r)) for r in line}
        assert seen == {(axis, r) for axis, n in ((0, 5), (1, 7)) for r in range(round(frame * n))}

    def test_a_frame_drawn_anew_has_every_size_between_and_the_grid_as_it_is(self):
        drawn = [jitter_positions(self.GRID, frame=2.0, frame_min=1.0) for _ in range(2000)]
        assert 0.05 < sum(torch.equal(x, self.GRID) for x in drawn) / 2000 < 0.2  # about where 7 f rounds to 7
        widths = torch.stack([x[:, 1].max() - x[:, 1].min() for x in drawn])
        assert set(widths.int().tolist()) == set(range(6, 14))
        fixed = [jitter_positions(self.GRID, frame=2.0, frame_min=2.0) for _ in range(200)]
        assert not any(torch.equal(x, self.GRID) for x in fixed)

    def test_a_scale_is_one_factor_log_uniform_and_an_offset_a_common_move(self):
        factors = torch.stack([jitter_positions(self.GRID, scale=2.0)[1:] / self.GRID[1:] for _ in range(400)])
        assert (factors.nan_to_num(-1).amax((1, 2)) - factors.nan_to_num(9).amin((1, 2))).max() < 1e-5
        logs = factors[:, -1, 0].log() / math.log(2)
        assert -1 <= logs.min() < -0.9
        assert 0.9 < logs.max() <= 1
        assert abs(logs.mean()) < 4.5 * (1 / 3 / 400) ** 0.5
        moves = torch.stack([jitter_positions(self.GRID, offset=3.0) - self.GRID for _ in range(400)])
        assert (moves - moves[:, :1]).abs().max() < 1e-5
        assert 2.8 < moves.abs().max() <= 3 + 1e-5
        assert (moves[:, 0, 0] - moves[:, 0, 1]).abs().max() > 1  # each axis its own

    def test_training_moves_positions_by_the_seed_and_evaluation_does_not(self):
        model = ImageClassifier(ViTConfig(**{**VIT, "drop_path": 0.0}), OptimConfig(randomized_positions=2))
        seen = []
        model.vit.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
        batch = torch.rand(2, 1, 60, 60), torch.tensor([0, 1])
        model.log = lambda *args, **kwargs: None
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            model.training_step(batch, 0)
        model.validation_step(batch, 0)
        assert torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[0], seen[2])
        assert seen[3] is None

    def test_centred_positions_stay_centred(self):
        seen = []
        model = ImageClassifier(
            ViTConfig(**{**VIT, "centred": True}), OptimConfig(randomized_positions=2, position_offset=3)
        )
        model.vit.encoding.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        images = torch.zeros(2, 1, 60, 60)
        model(images, model.draw_positions(images))
        assert seen[0].mean(0).abs().max() < 1e-5


class TestImageScale:
    """The size of a step's images, at patches of 12 pixels."""

    def test_sizes_are_log_uniform_whole_patches_and_of_one_factor(self):
        model = ImageClassifier(ViTConfig(**VIT), OptimConfig(image_scale=2))
        images = torch.rand(1, 1, 240, 480)
        sizes = [tuple(model.draw_size(images).shape[-2:]) for _ in range(300)]
        assert all(height % 12 == 0 and width % 12 == 0 for height, width in sizes)
        assert all(abs(width - 2 * height) <= 12 for height, width in sizes)
        heights = torch.tensor([float(height) for height, _ in sizes])
        assert (heights.min(), heights.max()) == (120, 480)
        logs = (heights / 240).log() / math.log(2)
        assert abs(logs.mean()) < 4.5 * (1 / 3 / 300) ** 0.5 + 0.05  # the standard error, and the rounding

    def test_a_resized_image_is_that_image(self):
        model = ImageClassifier(ViTConfig(**VIT), OptimConfig(image_scale=1.5))
        ramp = torch.linspace(0, 1, 60).expand(2, 1, 60, 60)
        for _ in range(10):
            resized = model.draw_size(ramp)
            width = resized.shape[-1]
            expected = ((torch.arange(width) + 0.5) * 60 / width - 0.5) / 59
            inner = slice(width // 8, -width // 8)
            torch.testing.assert_close(resized[1, 0, 3, inner], expected[inner], rtol=0, atol=5e-3)

    def test_training_scales_by_the_seed_and_evaluation_does_not(self):
        model = ImageClassifier(ViTConfig(**{**VIT, "positions": "interpolate"}), OptimConfig(image_scale=3))
        seen = []
        model.vit.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-1]))
        batch = torch.rand(2, 1, 60, 60), torch.tensor([0, 1])
        model.log = lambda *args, **kwargs: None
        for seed in (1, 1, 2, 3):
            torch.manual_seed(seed)
            model.training_step(batch, 0)
        model.validation_step(batch, 0)
        assert seen[0] == seen[1]
        assert len(set(seen[1:4])) > 1
        assert seen[4] == 60

    def test_one_is_none(self):
        images = torch.rand(1, 1, 60, 60)
        assert ImageClassifier(ViTConfig(**VIT)).draw_size(images) is images


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 0.1, 0.01) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1
    assert rates[55] == pytest.approx((1 + 0.01) / 2)
    assert rates[100] == pytest.approx(0.01)
    assert learning_rate(0, 100, 0.0, 0.0) == 1


@pytest.mark.parametrize("encoding", ["absolute", "cayley-string", "circulant-string", "rope-mixed"])
def test_only_weights_of_linear_layers_decay(encoding):
    model = ViT(ViTConfig(**{**VIT, "encoding": encoding, "registers": 1, "qk_norm": True}))
    decayed, free = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].split(".")[-1] for p in decayed["params"]} == {"weight"}
    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} == {"embed", "qkv", "out", "0", "2", "head"}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert any(names[id(p)].startswith("encoding.") for p in free["params"])


def test_images_count_alike_in_the_loss_of_a_validation_whatever_the_size_of_their_batch():
    module = ImageClassifier(ViTConfig(**VIT), resolutions=["60"]).eval()
    module.log = lambda *args, **kwargs: None
    images, targets = torch.randn(5, 1, 60, 60), torch.tensor([0, 1, 2, 3, 0])
    torch.nn.init.normal_(module.vit.head.weight)
    with torch.no_grad():
        for part in (slice(0, 4), slice(4, 5)):
            module.validation_step((images[part], targets[part]), 0)
        wanted = torch.nn.functional.cross_entropy(module(images), targets)
    torch.testing.assert_close(module.val_loss[0].compute(), wanted)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, False),
        ({"attention": "softmax", "feature_options": {}}, True),
        ({"feature_map": "polynomial", "feature_options": {}}, True),
        ({"attention": "performer-pytorch"}, False),
    ],
    ids=str,
)
def test_redraws_of_what_has_no_draw_are_said_to_have_no_effect(changes, said, caplog):
    model = ImageClassifier(ViTConfig(**{**VIT, **changes}), OptimConfig(redraw_every=2))
    before = [x.clone() for x in model.vit.buffers()]
    with caplog.at_level("INFO"):
        model.on_fit_start()
    model.vit.redraw(2)
    kept = all(torch.equal(x, y) for x, y in zip(model.vit.buffers(), before, strict=True))
    assert kept == said == ("redraw_every has no effect" in caplog.text)
