"""The data module: training images, a validation set, and test sets at any resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from performer_string.images.normalisation import BACKGROUND
from performer_string.images.preprocessing import Preprocessing
from performer_string.utils.validation import check_types
from train.data.arrow import ArrowTask
from train.data.cells import CellsTask
from train.data.checks import check_options, check_source, check_views
from train.data.generated import GeneratedDataset, GeneratedTask, size_of
from train.data.held_out import drawn_by
from train.data.images import Transformed, image_transform
from train.data.loaders import Examples, Loaders
from train.data.marked_contours import MarkedContoursTask
from train.data.masked_images import MaskedImages, mask_transform
from train.data.moving_arrow import MovingArrowTask
from train.data.normalisation import IMAGES, PixelNormalisation, normalisation_of
from train.data.pathfinder import PathfinderTask
from train.data.sizes import ONE, Views
from train.data.sources import SOURCES, download_source, majority_accuracy, numbers_of, outputs_of
from train.data.splits import ImageSplits
from train.data.tasks import TASKS, holds_out


@dataclass(eq=False)
class ImageData(Loaders):
    """Images for training and evaluation: uint8 or float32 in the loaders, normalised floats on the device.

    Attributes:
        source: generated task, `arrow`, `moving_arrow` (videos), `pathfinder`, `marked_contours` or `cells`; `videos`;
            or images, `mnist`, `cifar10`, `cifar100`, `imagenette`, `imagenet`, `folder`, `hub`, `webdataset`, `masks`.
        root: folder of the files.
        download: download missing files with torchvision.
        batch_size: number of images per step and process.
        train_size: images per epoch of a generated task, whose stream is endless unless `in_memory`; for stored images
            the number of images to use, 0 for all.
        train_fraction: share of each class to train on, 1 for all. A smaller share is a subset of a larger one.
        val_size: number of images in the validation and test sets of a generated task.
        val_fraction: share of the training set held out for validation; 0 trains on all of it without validation, and
            with `watch_test` on the test images in its place, as is usual for ImageNet.
        val_by_class: hold out that share of each class; by default in a `folder`, `hub`, `webdataset` and `videos`.
        val_split: validate on the source's own validation set where it has one besides its test set (a folder with
            `train`, `val` and `test`), not on held-out training images.
        test_fraction: share of each class in the test set, the same in all runs, for a `folder` that is not split into
            train and test (root/CLASS/IMAGE); 0 for one that is.
        resolutions: further sizes for each validation, like 168 or 96x128 (height x width).
        watch_test: log test/accuracy at each validation, in metrics.csv; it is never used to choose a checkpoint.
        augment: augmentations by name, in their order (`train/data/augmentations.py`). For `masks` there are crop,
            resized-crop, flip and rotate-90, for Pathfinder flip and rotate-90, `in_memory` only.
        repeats: number of times that an image comes in an epoch, each time augmented anew (arXiv:1901.09335; 3 in
            DeiT). An epoch has as many steps as with 1, and so fewer images.
        crop_scale: least area of a resized-crop, as a share of the image; the largest is the image.
        rand_augment: number and strength of the operations of rand-augment (arXiv:1909.13719); 27 of 30 is timm's m9.
        frame_stride: stride between frames of a video file; 0 for frames spread over its whole length.
        workers: number of worker processes; 0 for none.
        in_memory: decode stored images, or generate the `train_size` of a task, once and keep them. Batches are then
            augmented at once, many times faster, with only pad-crop, flip and rotate-90.
        grey: convert stored images to one grey channel.
        channels: number of channels of a `folder` of arrays (.npy); 0 for three, or one with `grey`.
        mean: mean of each channel, of integers in [0, 1]; by default the source's, 0.5 for a `folder`.
        std: standard deviation of each channel, with the same defaults.
        measure_mean: measure both over 500 of the training images instead. The checkpoint stores them.
        background: red, green and blue, 0 to 255, beneath transparent images of a `folder` or of `imagenet`.
        arrow: options of the arrow task.
        moving_arrow: options of the moving-arrow task, whose images are videos.
        pathfinder: options of Pathfinder.
        marked_contours: options of the marked contours, whose classes are those of pixels.
        cells: options of the cells task, whose classes are those of pixels.
        size: training size [height, width] or [frames, height, width] in pixels, by default the model's.
        seed: seed of the order, the augmentations and a generated task's stream; held-out sets do not depend on it.
    """

    source: str = "arrow"
    root: str = "data"
    download: bool = False
    batch_size: int = 128
    train_size: int = 0
    train_fraction: float = 1.0
    val_size: int = 1000
    val_fraction: float = 0.1
    val_by_class: bool | None = None
    val_split: bool = True
    test_fraction: float = 0.0
    resolutions: list[int | str] = field(default_factory=list)
    watch_test: bool = False
    augment: list[str] = field(default_factory=list)
    repeats: int = 1
    crop_scale: float = 0.35
    rand_augment: list[int] = field(default_factory=lambda: [2, 9])
    frame_stride: int = 0
    workers: int = 1
    in_memory: bool = False
    grey: bool = False
    channels: int = 0
    mean: list[float] | None = None
    std: list[float] | None = None
    measure_mean: bool = False
    background: list[int] = field(default_factory=lambda: list(BACKGROUND))
    arrow: ArrowTask = field(default_factory=ArrowTask)
    moving_arrow: MovingArrowTask = field(default_factory=MovingArrowTask)
    pathfinder: PathfinderTask = field(default_factory=PathfinderTask)
    marked_contours: MarkedContoursTask = field(default_factory=MarkedContoursTask)
    cells: CellsTask = field(default_factory=CellsTask)
    size: list[int] = field(default_factory=lambda: [108, 108])
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.root = str(self.root)
        check_types(self)
        check_source(self.source)
        self.task: GeneratedTask | None = getattr(self, self.source) if self.source in TASKS else None
        check_options(self)
        self.in_channels, self.num_classes, mean, std = numbers_of(self.source, self.task, self.grey, self.channels)
        self.head, self.outputs = (self.task or SOURCES[self.source]).head, outputs_of(self.source)
        self.pixels: PixelNormalisation = normalisation_of(self, mean, std)
        self._splits: ImageSplits | None = None
        self._trained: dict[str, Any] | None = None  # state in the checkpoint that this was loaded from

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain values, which load with `weights_only=True`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, **{name: asdict(getattr(self, name)) for name in TASKS}}

    def drawn_from(self, split: str) -> dict[str, Any]:
        """Return the options that determine the images of a split, `train`, `val` or `test`."""
        seed = {"seed": self.seed} if split == "train" else {}
        if self.task is not None:
            return {"source": self.source, **asdict(getattr(self, self.source)), **seed}
        where = {} if SOURCES[self.source].classes else {"root": str(Path(self.root).expanduser().resolve())}
        share = drawn_by(self.source, self.val_fraction, self.val_by_class) if split != "test" else {}
        share |= {"train_size": self.train_size, "train_fraction": self.train_fraction} if split == "train" else {}
        share |= {"val_split": True} if split == "val" and self._trained is not None and self.val_split else {}
        share |= {"test_fraction": self.test_fraction} if self.test_fraction else {}
        return {"source": self.source, **where, **share}

    @classmethod
    def from_checkpoint(cls, state: dict[str, Any]) -> ImageData:
        """Return the data module of a trained model, from the state in its checkpoint."""
        values = state["config"]
        tasks: dict[str, Any] = {name: task(**values[name]) for name, task in TASKS.items() if name in values}
        val_split = state.get("val_split", values.get("val_split", False))  # as trained; old states have neither
        data = cls(**{"val_by_class": False, **values, **tasks, "val_split": val_split})
        data._trained = state
        data.pixels.load(state)
        return data

    def prepare_data(self) -> None:
        if self.download and self.task is None:
            download_source(self.source, Path(self.root).expanduser())

    def setup(self, stage: str | None = None) -> None:
        """Open the training images, or for the stage `test` only the test images."""
        if self.task is None:
            self.num_classes = self.splits().open("test" if stage == "test" else "train")
        if stage != "test" and not self.pixels.is_known:
            self.pixels.measure(self._plain_training_images())

    def _plain_training_images(self) -> Examples:
        """Return the training images without augmentation."""
        if self.task is not None:
            return GeneratedDataset(self.task, size_of(self.task, self.size), IMAGES, "train")
        return self._images(self.splits().train, self.train_indices(), self.size)

    def splits(self) -> ImageSplits:
        """Return the sets of stored images; the first call opens them at `root`."""
        if self._splits is None:
            held = self.source, self.root, self.val_fraction, self.background, self.test_fraction, self.val_split
            self._splits = ImageSplits(*held, self.train_size, self.train_fraction, self.val_by_class)
            if self._trained is not None:
                self._splits.check_checkpoint(self._trained)
        return self._splits

    def validates(self) -> bool:
        """Return whether images are held out for validation; only `val_fraction` 0 prevents it."""
        return holds_out(self.source, self.val_fraction)

    def majority_accuracy(self, split: str) -> float:
        """Return the accuracy of the majority baseline: the task's, or that of the most frequent class."""
        if self.task is not None:
            return self.task.majority_accuracy()
        return majority_accuracy(*self.splits().held_out(split), self.num_classes or 1)

    def _images(self, dataset: Any, indices: Tensor, size: Sequence[int], **how: Any) -> Transformed:
        """Return images of a dataset, or frames of its videos, at a size; `how` is `training` or `views`."""
        kind, transform = (MaskedImages, mask_transform) if self.head == "dense" else (Transformed, image_transform)
        of = self.in_channels, self.num_classes or 0, self.outputs
        return kind(dataset, indices, transform(self, size, **how), *of)

    def held_out(self, split: str, size: Sequence[int], images: int = 0, views: Views = ONE) -> Examples:
        """Return the images of a split at a size, not augmented; a larger size shows more cells for a generated task.

        Args:
            split: name of the split, `val`, `test`, or `train` for images that are trained on.
            size: height and width in pixels, for videos preceded by the number of frames.
            images: number of images, 0 for all; a generated task has any number.
            views: number of views of each video.
        """
        check_views(views, self.source)
        if self.task is not None:
            count, seed = images or self.val_size, self.seed if split == "train" else 0
            if split == "train" and self.in_memory:  # all that there are
                count = min(count, self.train_size)
            return GeneratedDataset(self.task, size_of(self.task, size), count, split, seed)
        self.setup("test" if split == "test" else None)
        dataset, indices = self.splits().held_out(split)
        return self._images(dataset, indices[: images or None], size, views=views)

    def train_dataset(self) -> Examples:
        """Return the training images of an epoch, augmented unless that is done in memory."""
        if self.task is not None:
            return GeneratedDataset(self.task, size_of(self.task, self.size), self.train_size, "train", self.seed)
        self.setup()
        return self._images(self.splits().train, self.train_indices(), self.size, training=True)

    def train_indices(self) -> Tensor:
        """Return the indices of the stored images to train on."""
        return self.splits().train_indices()

    def train_labels(self) -> Tensor | None:
        """Return the labels of the training images, in no order; None for a source that does not list them."""
        labels = None if self.task is not None else self.splits().train_labels()
        return None if labels is None else labels[self.train_indices()]

    def state_dict(self) -> dict[str, Any]:
        """Return the options of the data and the position in the epoch, for checkpoints."""
        position = self._loader.state_dict() if self._loader else None
        split = self._splits.state() if self._splits else {}
        return {"config": self.plain(), "position": position, **self.pixels.state(), **split}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Lightning needs the loader to count its steps before it restores the state of the loader.
        self._resume = state["position"]
        self._trained = state
        self.pixels.load(state)
        if self._splits is not None:
            self._splits.check_checkpoint(state)

    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing that a model trained on these images needs for other images."""
        classes = self.splits().fingerprint["classes"] if self.task is None else self.task.classes
        return Preprocessing(self.pixels.mean, self.pixels.std, tuple(classes), tuple(self.background), self.outputs)
