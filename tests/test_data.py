"""Loaders that resume, sets that are held out, and errors for files that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets import MNIST
from torchvision.models import MobileNet_V3_Small_Weights
from training import REPOSITORY

from train.callbacks.control import StepSeed
from train.data.arrow import ArrowDataset, ArrowTask
from train.data.images import AUGMENTATIONS
from train.data.loader import EpochSampler, KeyedDataset, ResumableLoader
from train.data.module import ImageData
from train.data.sources import SOURCES


class Numbers(Dataset):
    """Item i is i, with a random number as its label."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        return torch.tensor(index), float(torch.rand(()))


def loader(size=23, batch_size=4, workers=0, rank=0, world=1, shuffle=True, stream=False) -> ResumableLoader:
    sampler = EpochSampler(size, batch_size, 5, shuffle, rank, world)
    return ResumableLoader(KeyedDataset(Numbers(size), 5, stream), sampler, num_workers=workers)


def batches(load: ResumableLoader) -> list[tuple[list[int], list[float]]]:
    return [(x.tolist(), y.tolist()) for x, y in load]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 2, 5])
def test_a_restored_loader_goes_on_with_the_next_batch(workers, done):
    whole, cut, back = loader(), loader(workers=workers), loader(workers=workers)
    expected = []
    for epoch in range(3):
        whole.order.set_epoch(epoch)
        expected += batches(whole)
    cut.order.set_epoch(0)
    batches(cut)
    cut.order.set_epoch(1)
    seen = [batch for _, batch in zip(range(done), cut, strict=False)]
    state = cut.state_dict() if seen else {"epoch": 0, "batches": 5, "step": 4, "size": 23}
    back.load_state_dict(state)
    back.order.set_epoch(back.order.epoch)  # as Lightning announces it
    found = batches(back)
    while len(found) < 10 - done:
        back.order.set_epoch(back.order.epoch + 1)
        found += batches(back)
    assert found == expected[5 + done :]
    assert len(back) == 5


def test_an_epoch_is_a_permutation_of_its_own():
    load = loader(size=24)
    epochs = []
    for epoch in (0, 1):
        load.order.set_epoch(epoch)
        epochs.append([i for x, _ in batches(load) for i in x])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(24))
    assert epochs[0] != epochs[1]


def test_ranks_share_out_each_global_batch():
    whole = batches(loader(size=24, batch_size=8))
    parts = [batches(loader(size=24, batch_size=4, rank=rank, world=2)) for rank in (0, 1)]
    for (x, y), (a, p), (b, q) in zip(whole, *parts, strict=True):
        assert sorted(x) == sorted(a + b)
        assert sorted(y) == sorted(p + q)  # augmentations do not depend on the rank either


def test_every_image_is_evaluated_once_whatever_the_number_of_processes(monkeypatch):
    data, seen = ImageData("arrow", val_size=7, size=[60, 60], workers=0), []
    for rank in range(3):
        monkeypatch.setattr(data, "_rank", lambda rank=rank: (rank, 3))
        seen += data.loader(data.held_out("val", (60, 60))).sampler
    assert sorted(seen) == list(range(7))


def test_a_stream_has_new_images_every_epoch():
    load = loader(size=8, shuffle=False, stream=True)
    load.order.set_epoch(3)
    assert [i for x, _ in batches(load) for i in x] == list(range(24, 32))


def test_too_large_a_batch_is_an_error():
    with pytest.raises(ValueError, match=r"23 images, fewer than one batch of 16 on 2 process"):
        loader(batch_size=16, world=2)


@pytest.fixture
def folder(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 5)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_a_folder_of_images(folder):
    whole = [name for name in AUGMENTATIONS if name != "pad-crop"]  # resized-crop does its work
    data = ImageData("folder", root=str(folder), batch_size=4, size=[16, 16], augment=whole)
    data.setup()
    assert data.num_classes == 2
    assert len(data.train_dataset()) == 36
    assert len(data.held_out("val", (16, 16))) == 4
    assert len(data.held_out("test", (16, 16))) == 10
    assert set(data._val_indices.tolist()).isdisjoint(data._train_indices.tolist())
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert data.held_out("test", (32, 32))[0][0].shape == (3, 32, 32)
    assert data.held_out("test", (8, 24))[0][0].shape == (3, 8, 24)


def test_the_held_out_images_do_not_depend_on_the_seed(folder):
    sets = [ImageData("folder", root=str(folder), seed=seed) for seed in (0, 1)]
    for data in sets:
        data.setup()
    assert torch.equal(sets[0]._val_indices, sets[1]._val_indices)


def test_the_first_so_many_images_are_of_all_classes(folder):
    """As `--images` takes them; a folder's files come class by class."""
    images = ImageData("folder", root=str(folder)).held_out("test", (8, 8))
    seen = [label for _, label in images]
    assert sorted(seen) == [0] * 5 + [1] * 5
    assert set(seen[:5]) == {0, 1}


def test_the_first_so_many_are_those_of_all(folder):
    """Of arrows, which are drawn, there are as many as asked for."""
    for data, size, more in (
        (ImageData("folder", root=str(folder)), (8, 8), 10),
        (ImageData("arrow", val_size=6), (60, 60), 99),
    ):
        whole, few = data.held_out("test", size), data.held_out("test", size, 4)
        assert len(few) == 4
        assert len(data.held_out("test", size, 99)) == more
        for i in range(4):
            assert torch.equal(whole[i][0], few[i][0])
            assert whole[i][1] == few[i][1]


def test_augmentations_are_a_function_of_epoch_and_index(folder):
    data = ImageData("folder", root=str(folder), batch_size=4, size=[16, 16], augment=["resized-crop", "flip"])
    one, two = data.train_dataloader().dataset, data.train_dataloader().dataset
    assert torch.equal(one[0, 3][0], two[0, 3][0])
    assert not torch.equal(one[0, 3][0], one[1, 3][0])


def test_normalisation():
    data = ImageData("mnist")
    x = data.normalise(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8))
    torch.testing.assert_close(x, torch.full((1, 1, 2, 2), (1 - 0.1307) / 0.3081))


def test_mnist_from_its_files(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 30), ("t10k", 10)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = (0x0800 + array.ndim).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    data = ImageData("mnist", root=str(tmp_path), batch_size=3, size=[28, 28])
    data.setup()
    assert len(data.train_dataset()) == 27
    assert next(iter(data.train_dataloader()))[0].shape == (3, 1, 28, 28)
    assert isinstance(data._open(train=False), MNIST)


@pytest.mark.parametrize("source", SOURCES)
def test_missing_files_say_what_to_get_and_where_to_put_it(source, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{source}: no usable training set under .*(?s:.)Put there: .*"
    ) as error:
        ImageData(source, root=str(tmp_path)).setup()
    assert str(tmp_path) in str(error.value).split("Put there")[1]
    assert "--data.root" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "cifar"}, "unknown data source 'cifar'. Did you mean 'cifar10"),
        ({"augment": ["flipp"]}, "unknown augmentation 'flipp'. Did you mean 'flip'"),
        ({"val_fraction": 0.0}, "val_fraction has to lie between 0 and 1"),
        ({"batch_size": 0}, "have to be positive"),
        ({"source": "folder", "augment": ["pad-crop", "resized-crop"]}, "augment takes one of them"),
    ],
)
def test_bad_data(options, message):
    with pytest.raises(ValueError, match=message):
        ImageData(**options)


def test_the_arrow_stream_needs_a_length():
    with pytest.raises(ValueError, match=r"data\.train_size has to say"):
        ImageData("arrow").train_dataset()


def test_plain_and_back():
    data = ImageData("arrow", train_size=64, resolutions=[84])
    assert ImageData.from_checkpoint({"config": data.plain()}).plain() == data.plain()


def test_a_crash_with_workers_ends():
    """They ignore SIGTERM, by which Python would ask them to end before it waits for them."""
    program = """
from train.data.module import ImageData
batches = iter(ImageData(train_size=64, batch_size=8, size=[60, 60], workers=1).train_dataloader())
next(batches)
raise RuntimeError("a crash")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "a crash" in done.stderr


def test_training_validation_and_test_are_three_sets_of_arrows():
    data = ImageData("arrow", train_size=16, val_size=16, size=[60, 60], batch_size=16, workers=0)
    loaders = (data.train_dataloader(), data.val_dataloader()[0], data.test_dataloader()[0])
    images = [next(iter(loader))[0] for loader in loaders]
    for split, found in zip(("val", "test"), images[1:], strict=True):
        held_out = data.held_out(split, (60, 60))
        assert torch.equal(found, torch.stack([held_out[i][0] for i in range(16)]))
        assert torch.equal(found, torch.stack([ArrowDataset(ArrowTask(), 60, 16, split)[i][0] for i in range(16)]))
    flat = torch.cat(images).flatten(1)
    assert len(flat.unique(dim=0)) == 48


def test_loaders_of_a_folder_are_of_its_splits(folder):
    data = ImageData("folder", root=str(folder), size=[8, 8], batch_size=100, workers=0)
    for split, loader in (("val", data.val_dataloader()), ("test", data.test_dataloader())):
        held_out = data.held_out(split, (8, 8))
        images = torch.cat([x for x, _ in loader[0]])
        assert torch.equal(images, torch.stack([held_out[i][0] for i in range(len(held_out))]))


def test_augmentations_are_what_they_are_called():
    image = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)
    flipped = {tuple(AUGMENTATIONS["flip"]((8, 8))(image).flatten().tolist()) for _ in range(50)}
    assert flipped == {tuple(image.flatten().tolist()), tuple(image.flip(-1).flatten().tolist())}
    padded = torch.nn.functional.pad(image + 1, (1, 1, 1, 1))  # by an eighth
    places = {tuple(padded[:, i : i + 8, j : j + 8].flatten().tolist()) for i in range(3) for j in range(3)}
    cropped = {tuple(AUGMENTATIONS["pad-crop"]((8, 8))(image + 1).flatten().tolist()) for _ in range(300)}
    assert cropped == places


def test_constants_of_the_sources():
    """ImageNet's are those of torchvision's weights; the others are of the images themselves."""
    expected = MobileNet_V3_Small_Weights.IMAGENET1K_V1.transforms()
    for name in ("imagenet", "imagenette"):
        assert (SOURCES[name].mean, SOURCES[name].std) == (tuple(expected.mean), tuple(expected.std))


def test_steps_draw_other_numbers_on_each_rank():
    drawn = []
    for step, rank in ((0, 0), (0, 1), (1, 0), (0, 0)):
        loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=step))
        StepSeed(5).on_train_batch_start(SimpleNamespace(fit_loop=loop, global_rank=rank), None, None, 0)
        drawn.append(float(torch.rand(())))
    assert len(set(drawn)) == 3
    assert drawn[0] == drawn[3]
