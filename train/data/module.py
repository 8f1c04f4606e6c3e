"""The data module: one training stream, a validation set held out of it, and test sets at any resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from performer_string.images.normalisation import BACKGROUND
from performer_string.models.preprocessing import Preprocessing
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_types
from train.data.arrow import ArrowTask
from train.data.cells import CellsTask
from train.data.checks import check_measured, check_options, check_views
from train.data.generated import GeneratedDataset, GeneratedTask, size_of
from train.data.images import AUGMENTATIONS, Transformed, image_transform
from train.data.loaders import Examples, Loaders
from train.data.moving_arrow import MovingArrowTask
from train.data.normalisation import IMAGES, PixelNormalisation
from train.data.pathfinder import PathfinderTask
from train.data.sizes import ONE, Size, Views
from train.data.sources import SOURCES, download_source, majority_accuracy, numbers_of
from train.data.splits import ImageSplits
from train.data.tasks import TASKS


@dataclass(eq=False)
class ImageData(Loaders):
    """Images to train and evaluate on: uint8 in the loaders, normalised floats on the device.

    Attributes:
        source: a generated task, `arrow`, `moving_arrow` (videos), `pathfinder` or `cells`; or stored images, `mnist`,
            `cifar10`, `cifar100`, `imagenette`, `imagenet`, `folder`, `hub` or `webdataset`; or `videos`.
        root: where the files are.
        download: get the files with torchvision if they are missing.
        batch_size: images a step and process.
        train_size: images an epoch of a generated task, whose stream is endless unless `in_memory`; of stored images
            the first so many, 0 for all.
        train_fraction: share of them, and of each class the same, 1 for all. A smaller share lies within a larger one.
        val_size: images of the validation and test sets of a generated task.
        val_fraction: share of the training set held out for validation, 0 to train on all of it without. The test set
            is for `test` and `eval` only.
        val_split: validate on the validation set of a source that has one beside its test set, as a folder with
            `train`, `val` and `test` does, and train on all training images. Else a share is held out of these.
        test_fraction: share of each class that is tested on, the same in all runs, of a `folder` that is not split into
            train and test (root/CLASS/IMAGE); 0 for one that is.
        resolutions: further sizes that each validation is repeated at, like 168 or 96x128 (height x width).
        watch_test: log test/accuracy at each validation, in metrics.csv; it is never used to choose a checkpoint.
        augment: any of pad-crop, resized-crop, flip, rotate-90, rand-augment, erase; in the order given, and alike for
            all frames of a clip. Of the generated tasks Pathfinder alone has some: flip and rotate-90, in memory.
        crop_scale: least area of a resized-crop, as a share of the image; the largest is the image.
        rand_augment: number and strength, 0 to 30, of the operations of rand-augment (arXiv:1909.13719).
        frame_stride: of the frames of a video file; 0 for frames spread over its whole length.
        workers: processes that prepare data; 0 for none.
        in_memory: decode stored images, or draw the `train_size` of a generated task, once and keep them as uint8. A
            batch is taken, cropped and flipped at once, many times faster, by pad-crop, flip and rotate-90 alone.
        grey: make stored images grey, of one channel.
        mean: of each channel, in [0, 1]; by default the source's, 0.5 for a `folder`.
        std: standard deviation of each channel, likewise.
        measure_mean: measure both over 500 of the training images instead. The checkpoint keeps them.
        background: red, green and blue, 0 to 255, beneath transparent images of a `folder` or of `imagenet`.
        arrow: the version of the arrow task.
        moving_arrow: the version of the moving-arrow task, whose images are videos.
        pathfinder: the version of Pathfinder.
        cells: the version of the cells task, whose classes are those of pixels.
        size: [height, width] to train at, in pixels, or [frames, height, width]; the recipe takes it from the model.
            Images are made to cover the size that they are wanted at, and their middle is cut out.
        seed: of the order, the augmentations and the stream of a generated task; held-out sets do not depend on it.
    """

    source: str = "arrow"
    root: str = "data"
    download: bool = False
    batch_size: int = 128
    train_size: int = 0
    train_fraction: float = 1.0
    val_size: int = 1000
    val_fraction: float = 0.1
    val_split: bool = True
    test_fraction: float = 0.0
    resolutions: list[int | str] = field(default_factory=list)
    watch_test: bool = False
    augment: list[str] = field(default_factory=list)
    crop_scale: float = 0.35
    rand_augment: list[int] = field(default_factory=lambda: [2, 9])
    frame_stride: int = 0
    workers: int = 1
    in_memory: bool = False
    grey: bool = False
    mean: list[float] | None = None
    std: list[float] | None = None
    measure_mean: bool = False
    background: list[int] = field(default_factory=lambda: list(BACKGROUND))
    arrow: ArrowTask = field(default_factory=ArrowTask)
    moving_arrow: MovingArrowTask = field(default_factory=MovingArrowTask)
    pathfinder: PathfinderTask = field(default_factory=PathfinderTask)
    cells: CellsTask = field(default_factory=CellsTask)
    size: list[int] = field(default_factory=lambda: [108, 108])
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.root = str(self.root)
        check_types(self)
        lookup("data source", self.source, {**TASKS, **SOURCES})
        for name in self.augment:
            lookup("augmentation", name, AUGMENTATIONS)
        self.task: GeneratedTask | None = getattr(self, self.source) if self.source in TASKS else None
        check_options(self)
        self.in_channels, self.num_classes, mean, std = numbers_of(self.source, self.task, self.grey)
        self.head = "class" if self.task is None else self.task.head
        check_measured(self)
        self.pixels = PixelNormalisation(
            self.mean or mean, self.std or std, self.in_channels, len(self.size), self.measure_mean
        )
        self._splits: ImageSplits | None = None
        self._trained: dict[str, Any] | None = None  # the state in the checkpoint that this comes from

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain values, which a checkpoint loads with `weights_only=True`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, **{name: asdict(getattr(self, name)) for name in TASKS}}

    def drawn_from(self, split: str) -> dict[str, Any]:
        """Return what decides which images are held out for a split: `val` or `test`."""
        if self.task is not None:
            return {"source": self.source, **asdict(getattr(self, self.source))}
        where = {} if SOURCES[self.source].classes else {"root": str(Path(self.root).expanduser().resolve())}
        share = {"val_fraction": self.val_fraction} if split == "val" else {}
        share |= {"val_split": True} if split == "val" and self._trained is not None and self.val_split else {}
        share |= {"test_fraction": self.test_fraction} if self.test_fraction else {}
        return {"source": self.source, **where, **share}

    @classmethod
    def from_checkpoint(cls, state: dict[str, Any]) -> ImageData:
        """Return the data that a model was trained on, from the state in its checkpoint."""
        values = state["config"]
        tasks: dict[str, Any] = {name: task(**values[name]) for name, task in TASKS.items() if name in values}
        val_split = state.get("val_split", values.get("val_split", False))  # what was done; old ones have neither
        data = cls(**{**values, **tasks, "val_split": val_split})
        data._trained = state
        data.pixels.load(state)
        return data

    def prepare_data(self) -> None:
        if self.download and self.task is None:
            download_source(self.source, Path(self.root).expanduser())

    def setup(self, stage: str | None = None) -> None:
        """Open the training images; for the stage `test` the test images, and nothing else."""
        if self.task is None:
            self.num_classes = self.splits().open("test" if stage == "test" else "train")
        if stage != "test" and not self.pixels.is_known:
            self.pixels.measure(self._plain_training_images())

    def _plain_training_images(self) -> Examples:
        """Return images of the training, which are not augmented."""
        if self.task is not None:
            return GeneratedDataset(self.task, size_of(self.task, self.size), IMAGES, "train")
        return self._images(self.splits().train, self.train_indices(), self.size)

    def splits(self) -> ImageSplits:
        """Return the stored images; the first call opens them at `root`."""
        if self._splits is None:
            self._splits = ImageSplits(
                self.source, self.root, self.val_fraction, self.background, self.test_fraction, self.val_split
            )
            if self._trained is not None:
                self._splits.check_checkpoint(self._trained)
        return self._splits

    def validates(self) -> bool:
        """Return whether images are held out for validation: always, unless `val_fraction` is 0."""
        return self.task is not None or self.val_fraction > 0

    def majority_accuracy(self, split: str) -> float:
        """Return the accuracy of the majority baseline: that of a generated task, or the most frequent class."""
        if self.task is not None:
            return self.task.majority_accuracy()
        return majority_accuracy(*self.splits().held_out(split), self.num_classes or 1)

    def _images(self, dataset: Any, indices: Tensor, size: Sequence[int], **how: Any) -> Transformed:
        """Return some of a dataset's images, or frames of its videos, at a size; `how` is `training` or `views`."""
        transform = image_transform(self, size, **how)
        return Transformed(dataset, indices, transform, self.in_channels, self.num_classes or 0)

    def held_out(self, split: str, size: Sequence[int], images: int = 0, views: Views = ONE) -> Examples:
        """Return the validation or test set at a size: larger images, or more of what a task draws.

        Args:
            split: `val` or `test`.
            size: height and width in pixels, after the frames of videos.
            images: only the first so many, 0 for all; of a generated task any number can be had.
            views: of each video.
        """
        check_views(views, self.source)
        if self.task is not None:
            return GeneratedDataset(self.task, size_of(self.task, size), images or self.val_size, split)
        self.setup("test" if split == "test" else None)
        dataset, indices = self.splits().held_out(split)
        return self._images(dataset, indices[: images or None], size, views=views)

    def train_dataset(self) -> Examples:
        """Return the images of an epoch of training, augmented unless that is done in memory."""
        if self.task is not None:
            if self.train_size < 1:
                raise ValueError(
                    f"the {self.source} stream is endless: data.train_size has to say how many images an epoch has."
                )
            return GeneratedDataset(self.task, size_of(self.task, self.size), self.train_size, "train", self.seed)
        self.setup()
        return self._images(self.splits().train, self.train_indices(), self.size, training=True)

    def train_indices(self) -> Tensor:
        """Return which of the stored images are trained on."""
        return self.splits().train_indices(self.train_size, self.train_fraction)

    def train_labels(self) -> Tensor | None:
        """Return the labels of the images to train on, in no order; None for a source that does not list them."""
        if self.task is not None or (labels := self.splits().train_labels()) is None:
            return None
        return labels[self.train_indices()]

    def state_dict(self) -> dict[str, Any]:
        """Return what the data are, and how far the epoch is, for checkpoints."""
        position = self._loader.state_dict() if self._loader else None
        split = self._splits.state() if self._splits else {}
        return {"config": self.plain(), "position": position, **self.pixels.state(), **split}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Lightning asks for the loader, to count its steps, before it would restore a loader's state by itself.
        self._resume = state["position"]
        self._trained = state
        self.pixels.load(state)
        if self._splits is not None:
            self._splits.check_checkpoint(state)

    def sizes(self) -> list[Size]:
        """Return the sizes to validate and test at: the training resolution first."""
        return list(dict.fromkeys(map(Size.of, [self.size, *self.resolutions])))

    def preprocessing(self) -> Preprocessing:
        """Return what a model that is trained on these images has to know to read others."""
        classes = self.splits().fingerprint["classes"] if self.task is None else self.task.classes
        return Preprocessing(self.pixels.mean, self.pixels.std, tuple(classes), tuple(self.background))
