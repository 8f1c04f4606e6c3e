"""The moving-arrow task: what a video shows, that the answer is what it says, and training and testing on videos."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eval import cli
from tests.helpers.checkpoints import read
from train import cli as train_cli
from train.data.arrow import STEPS, ArrowTask
from train.data.generated import GeneratedDataset
from train.data.module import ImageData
from train.data.moving_arrow import MovingArrowTask
from train.data.sizes import Size

SIZE = Size(8, 72, 72)


def cells_of(frame: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Return the pixels of each cell that is not blank."""
    cells = {(y, x): frame[12 * y : 12 * y + 12, 12 * x : 12 * x + 12] for y in range(6) for x in range(6)}
    return {place: pixels for place, pixels in cells.items() if pixels.any()}


@pytest.mark.parametrize("mark", ["square", "y"])
def test_the_class_is_the_arrow_at_the_base_of_the_y_in_the_marked_step(mark):
    """Read from pixels, by the glyphs of the still task alone."""
    glyphs = ArrowTask()._glyphs
    data, seen = GeneratedDataset(MovingArrowTask(mark=mark), SIZE, 40, "val"), set()
    for video, label in data:
        assert video.shape == (1, *SIZE)
        assert video.dtype == torch.uint8
        frames = video[0].numpy()
        assert (frames[::2] == frames[1::2]).all()  # a step lasts two frames
        steps = [cells_of(frame) for frame in frames[::2]]
        places = [set(step) for step in steps]
        marked = [step for step in range(4) if places[step] - places[step - 1]]
        assert len(marked) == 1
        ((y, side),) = [
            (place, turn)
            for place, pixels in steps[marked[0]].items()
            for turn in range(4)
            if (pixels == np.rot90(glyphs["Y"], turn)).all()
        ]
        assert sum(y in step for step in steps) == (4 if mark == "square" else 1)
        target = tuple(np.array(y) + STEPS[(side + 2) % 4])
        read_there = [
            next(turn for turn in range(4) if (step[target] == np.rot90(glyphs["arrow"], turn)).all()) for step in steps
        ]
        assert read_there[marked[0]] == label
        seen.add((marked[0], len(set(read_there)) > 1))
    assert {step for step, _ in seen} == {0, 1, 2, 3}
    assert any(changes for _, changes in seen)


def test_classes_are_balanced_and_a_video_is_a_function_of_its_number():
    data = GeneratedDataset(MovingArrowTask(), SIZE, 400, "train", seed=1)
    counts = torch.bincount(torch.tensor([label for _, label in data]), minlength=4)
    assert counts.min() > 70
    again = GeneratedDataset(MovingArrowTask(), SIZE, 8, "train", seed=1)
    assert torch.equal(again[3][0], data[3][0])
    assert not torch.equal(GeneratedDataset(MovingArrowTask(), SIZE, 8, "val", seed=1)[3][0], data[3][0])
    best = np.mean([max(np.bincount(arrows)) for arrows in np.random.default_rng(0).integers(4, size=(4000, 8))]) / 8
    assert MovingArrowTask().majority_accuracy() == pytest.approx(best, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MovingArrowTask(hold=0), "hold must be 1 or more, not 0"),
        (lambda: MovingArrowTask(mark="dot"), "mark must be one of square, y, not 'dot'"),
        (
            lambda: GeneratedDataset(MovingArrowTask(), (7, 72, 72), 1, "val"),
            "a multiple of hold=2 frames.*not 7x72x72",
        ),
        (lambda: GeneratedDataset(MovingArrowTask(), (8, 72, 84), 1, "val"), "like 8x72x72, not 8x72x84"),
        (lambda: GeneratedDataset(MovingArrowTask(), (8, 48, 48), 1, "val"), "60 pixels or more, not 48"),
        (
            lambda: ImageData("moving_arrow"),
            "sizes of moving_arrow are frames, height and width, like 8x72x72, not 108",
        ),
        (lambda: ImageData("mnist", size=[8, 28, 28]), "sizes of mnist are height and width, like 96x128, not 8x28x28"),
    ],
)
def test_sizes_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_a_model_trains_on_videos_and_is_tested_on_longer_and_larger_ones(tmp_path, monkeypatch, capsys):
    """By the command line, with every encoding of one dimension or three that the recipe could have."""
    monkeypatch.chdir(tmp_path)
    small = ["--data.train_size", "16", "--data.val_size", "8", "--data.batch_size", "8", "--data.workers", "0"]
    small += ["--trainer.max_epochs", "1", "--run_dir", "runs/video", "--trainer.enable_progress_bar", "false"]
    small += ["--model.vit.width", "16", "--model.vit.depth", "1", "--model.vit.num_heads", "2", "--figures_every", "0"]
    small += ["--model.vit.feature_options", "{order: 4, num_features: 16}"]
    train_cli.run(["fit", "--config", "moving-arrow", *small])
    cli.main(["resolution", "--checkpoint", "runs/video", "--resolutions", "4x60x60", "8x60x60", "4x84x84"])
    _, rows = read(tmp_path / "runs" / "video" / "results" / "resolution.csv")
    assert [(row["resolution"], row["tokens"]) for row in rows] == [
        ("4x60x60", "50"), ("8x60x60", "100"), ("4x84x84", "98")
    ]  # fmt: skip
    capsys.readouterr()
    for arguments, message in (
        (["predict", "runs/video", "a.mp4"], "there is no file or folder a.mp4"),
        (["attention", "runs/video", "--example", "0"], "a model of videos or volumes"),
        (["export", "runs/video", "--format", "torch"], "this one has patches of 3 axes"),
    ):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert message in capsys.readouterr().err
    for name in ("intervene", "estimator", "confusion", "compare", "cost"):
        cli.main([name, *([] if name == "compare" else ["--checkpoint"]), "runs/video", "--images", "4"])
