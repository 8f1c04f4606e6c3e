"""WebDataset shards and several processes: shards are read once, and each sample comes once in an epoch."""

from __future__ import annotations

import io
import multiprocessing
import tarfile
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from train.data import hub
from train.data.module import ImageData

datasets = pytest.importorskip("datasets")
WebDataset = pytest.importorskip("datasets.packaged_modules.webdataset.webdataset").WebDataset
SAMPLES, WORLD, BATCH = 44, 2, 2  # eleven steps of both processes


def write_shards(root: Path) -> None:
    """Write shards of unequal length, whose samples have their number as colour."""
    for name, first, last in (("train-0", 0, 9), ("train-1", 9, 12), ("train-2", 12, SAMPLES), ("test-0", 0, 4)):
        with tarfile.open(root / f"{name}.tar", "w") as tar:
            for number in range(first, last):
                buffer = io.BytesIO()
                Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(buffer, "png")
                for ending, content in (("png", buffer.getvalue()), ("cls", str(number % 2).encode())):
                    info = tarfile.TarInfo(f"{number:03d}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def loader(root: Path, rank: int, world: int, batch: int, state: dict[str, int] | None = None):
    """Return the training loader of a process."""
    data = ImageData("webdataset", root=str(root), size=[8, 8], batch_size=batch, workers=2, val_fraction=0)
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world, overfit_batches=0)
    data._resume = state
    return data.train_dataloader()


def read(root: Path, rank: int, start, results) -> None:
    """Open the shards when the other process does, and send whether this one reads them, and its samples by step."""
    hub.latest.clear()
    examples = WebDataset._generate_examples

    def generate(*arguments, **options):
        results.put((rank, "shards", None))
        return examples(*arguments, **options)

    WebDataset._generate_examples = generate
    datasets.disable_progress_bars()
    start.wait()
    for images, _ in loader(root, rank, WORLD, BATCH):
        results.put((rank, "step", images[:, 0, 0, 0].tolist()))
    results.put((rank, "end", None))


@pytest.mark.slow
def test_two_processes_read_each_sample_once(tmp_path, monkeypatch):
    write_shards(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(WORLD), context.Queue()
    processes = [context.Process(target=read, args=(tmp_path, rank, start, results)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    steps: dict[int, list[list[int]]] = {rank: [] for rank in range(WORLD)}
    ended = readers = 0
    while ended < WORLD:
        rank, kind, content = results.get(timeout=120)
        ended += kind == "end"
        readers += kind == "shards"
        if kind == "step":
            steps[rank].append(content)
    for process in processes:
        process.join()
    together = [a + b for a, b in zip(*steps.values(), strict=True)]
    assert sorted(number for step in together for number in step) == list(range(SAMPLES))
    assert readers == 1  # the other one waits, and reads what that one has written

    # One process in place of both has the same images in each step, and goes on in the middle of the epoch.
    alone = [images[:, 0, 0, 0].tolist() for images, _ in loader(tmp_path, 0, 1, WORLD * BATCH)]
    assert [sorted(step) for step in alone] == [sorted(step) for step in together]
    state = {"epoch": 0, "batches": 4, "step": WORLD * BATCH, "size": SAMPLES}
    resumed = [images[:, 0, 0, 0].tolist() for images, _ in loader(tmp_path, 0, 1, WORLD * BATCH, state)]
    assert resumed == alone[4:]


def test_labels_are_taken_as_one_column():
    """One by one, a million of them take minutes in each process."""

    class Column:
        def __iter__(self):
            pytest.fail("one by one")

        def __getitem__(self, key):
            return ["b", "a", "b"][key]

    class Split(dict):
        features = MappingProxyType({"image": datasets.Image(), "cls": datasets.Value("string")})

    images = hub.HubImages(Split(cls=Column()))
    assert (images.classes, images.targets) == (["a", "b"], [1, 0, 1])
