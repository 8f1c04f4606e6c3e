"""Datasets of the library `datasets` and WebDataset shards, made in the test."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from eval.cli import main as evaluate
from eval.models import load_model
from eval.report import read_csv
from tests.helpers.training import TINY
from train import cli
from train.checkpoint import load_trained
from train.data import hub
from train.data.module import ImageData
from train.data.sources import SOURCES, open_source

datasets = pytest.importorskip("datasets")
NAMES = ("ant", "bee", "cat")


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.full((9, 12, 3), number, np.uint8))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub.latest.clear()


def saved(tmp_path, label, labels: list, image: str = "image"):
    features = datasets.Features({image: datasets.Image(), "note": datasets.Value("string"), "label": label})
    columns = {image: [picture(i) for i in range(6)], "note": ["x"] * 6, "label": labels}
    splits = {name: datasets.Dataset.from_dict(columns, features=features) for name in ("train", "validation")}
    folder = tmp_path / "saved"
    datasets.DatasetDict(splits).save_to_disk(folder)
    return folder


def test_saved_dataset(tmp_path):
    folder = saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), [0, 1, 2, 0, 1, 2])
    data = ImageData(source="hub", root=str(folder), size=[8, 8], val_fraction=0.34, batch_size=2, workers=0)
    data.setup()
    assert (data.num_classes, data.preprocessing().classes) == (3, NAMES)
    assert sorted(data.train_labels().tolist() + [data.splits().train.targets[i] for i in data.splits().parts[1]]) == [
        0, 0, 1, 1, 2, 2
    ]  # fmt: skip
    items = [data.splits().test[i] for i in range(6)]
    assert [(image.getpixel((0, 0))[0], label) for image, label in items] == [(i, i % 3) for i in range(6)]
    images, targets = next(iter(data.train_dataloader()))
    assert (images.shape, len(targets)) == ((2, 3, 8, 8), 2)


def test_a_validation_split_beside_a_test_split(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    counts = {"train": 9, "validation": 6, "test": 3}
    splits = {
        name: datasets.Dataset.from_dict(
            {"image": [picture(i) for i in range(count)], "label": [i % 3 for i in range(count)]}, features=features
        )
        for name, count in counts.items()
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    data = ImageData(source="hub", root=str(tmp_path / "saved"), size=[8, 8], workers=0)
    assert len(data.train_dataset()) == 9
    assert (len(data.held_out("val", (8, 8))), len(data.held_out("test", (8, 8)))) == (6, 3)


def test_the_classes_that_a_data_set_declares(tmp_path):
    """A model has as many; those of other labels are known when they are read."""
    count = SOURCES["hub"].count
    assert count(saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), [0, 1, 0, 1, 0, 1])) == 3
    assert count(saved(tmp_path, datasets.Value("string"), ["cat", "ant", "cat", "bee", "ant", "bee"])) == 0
    assert count(tmp_path / "missing") == 0


def test_labels_that_are_texts(tmp_path):
    folder = saved(tmp_path, datasets.Value("string"), ["cat", "ant", "cat", "bee", "ant", "bee"], image="img")
    dataset = open_source("hub", folder, train=True)
    assert (dataset.classes, dataset.targets) == (list(NAMES), [2, 0, 2, 1, 0, 1])


def test_a_table_of_labels(tmp_path):
    """`metadata.csv` beside the images: texts or numbers, with a test set in a folder of its own."""
    root = tmp_path / "images"
    for split, count in (("train", 10), ("test", 4)):
        (root / split / "photographs").mkdir(parents=True)
        lines = ["file_name,label,note"]
        for i in range(count):
            picture(i).save(root / split / "photographs" / f"{i}.png")
            lines.append(f"photographs/{i}.png,{('cat', 'ant')[i % 2]},x")
        (root / split / "metadata.csv").write_text("\n".join(lines) + "\n")
    data = ImageData("hub", root=str(root), size=[8, 8], workers=0, val_fraction=0.2)
    assert (len(data.train_dataset()), len(data.held_out("val", (8, 8)))) == (8, 2)
    assert data.preprocessing().classes == ("ant", "cat")
    assert sorted(label for _, label in data.held_out("test", (8, 8))) == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="test_fraction splits a source `folder`"):
        ImageData("hub", root=str(root), size=[8, 8], test_fraction=0.2)


@pytest.mark.parametrize("name", ["csv", "imagefolder"])
def test_the_source_of_a_table_is_named(name):
    with pytest.raises(ValueError, match=rf"unknown data source '{name}'.* metadata\.csv .* --data\.source hub"):
        ImageData(name)


def test_nothing_is_downloaded_unasked():
    with pytest.raises(FileNotFoundError, match=r"--data\.download true"):
        ImageData(source="hub", root="nobody/nothing").setup()


def test_name_on_the_hub(tmp_path, monkeypatch):
    """A name is asked for once, for all sets, and no folder stands in its place."""
    folder = saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), [0, 1, 2, 0, 1, 2])
    asked = []

    def load_dataset(name):
        asked.append((name, datasets.config.HF_HUB_OFFLINE))
        return datasets.load_from_disk(str(folder))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    data = ImageData(source="hub", root="owner/name", download=True, size=[8, 8], val_fraction=0.34)
    data.prepare_data()
    data.setup()
    assert data.num_classes == 3
    assert len(data.held_out("test", (8, 8))) == 6
    assert asked == [("owner/name", False)]
    hub.latest.clear()
    ImageData(source="hub", root="owner/name", size=[8, 8], val_fraction=0.34).setup()
    assert asked[1:] == [("owner/name", True)]  # another process reads the cache
    assert not (tmp_path / "owner").exists()
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_folder_that_was_written_again_is_opened_again(tmp_path):
    for labels in ([0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 1, 0]):
        folder = saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), labels)
        assert open_source("hub", folder, train=True).targets == labels


def test_a_folder_with_a_broken_link(tmp_path):
    """As an editor leaves beside a file."""
    folder = saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), [0, 1, 2, 0, 1, 2])
    (folder / ".#README.md").symlink_to("nowhere")
    assert len(open_source("hub", folder, train=True)) == 6


@pytest.mark.slow
def test_a_name_on_the_hub_by_the_command_line(tmp_path, monkeypatch):
    """The classes are those of the data set, and the folder of the run knows its name."""
    folder = saved(tmp_path, datasets.ClassLabel(names=list(NAMES)), [0, 1, 2, 0, 1, 2])
    asked = []

    def load_dataset(name):
        asked.append(name)
        return datasets.load_from_disk(str(folder))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    source = {"source": "hub", "root": "owner/name", "batch_size": 2, "val_fraction": 0.34, "workers": 0}
    vit = {**TINY["model"]["vit"], "in_channels": 3, "num_classes": 3, "image_size": 12}
    recipe = {"trainer": {**TINY["trainer"], "max_epochs": 1}, "model": {"vit": vit}, "data": source}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    cli.main(["fit", "--config", "recipe.yaml", "--run_dir", "run", "--data.download", "true"])
    assert set(asked) == {"owner/name"}
    assert load_model(Path("run")).classes == NAMES
    evaluate(["confusion", "--checkpoint", "run", "--resolutions", "12"])
    predictions = read_csv(tmp_path / "run/results/confusion/predictions-run-12.csv")[1]
    assert sorted(row["truth"] for row in predictions) == sorted([*NAMES, *NAMES])
    assert load_trained(Path("run/checkpoints/last.ckpt")).data.root == "owner/name"


def test_no_download_is_offered_for_shards(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        open_source("webdataset", tmp_path, train=True)
    assert "data.download" not in str(error.value)


def test_columns_without_labels(tmp_path):
    dataset = datasets.Dataset.from_dict(
        {"image": [picture(0)]}, features=datasets.Features({"image": datasets.Image()})
    )
    datasets.DatasetDict({"train": dataset}).save_to_disk(tmp_path / "saved")
    with pytest.raises(FileNotFoundError, match=r"among image: name it label. For a folder of images the table"):
        open_source("hub", tmp_path / "saved", train=True)


def write_shard(path, samples):
    with tarfile.open(path, "w") as tar:
        for key, (image, label) in samples.items():
            buffer = io.BytesIO()
            image.save(buffer, "png")
            for ending, content in (("png", buffer.getvalue()), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def test_webdataset_shards(tmp_path):
    for shard in range(2):
        samples = {f"{i:03d}": (picture(i), i % 3) for i in range(3 * shard, 3 * shard + 3)}
        write_shard(tmp_path / f"train-{shard}.tar", samples)
    write_shard(tmp_path / "test-0.tar", {f"{i}": (picture(i), i) for i in range(3)})
    train, test = (open_source("webdataset", tmp_path, train) for train in (True, False))
    assert (train.classes, train.targets, len(test)) == (["0", "1", "2"], [0, 1, 2, 0, 1, 2], 3)
    assert [train[i][0].getpixel((0, 0))[0] for i in range(6)] == list(range(6))
    with pytest.raises(FileNotFoundError, match=r"train\*\.tar"):
        open_source("webdataset", tmp_path / "empty", train=True)


def test_validation_shards_beside_test_shards(tmp_path):
    for name, count in (("train", 6), ("val", 4), ("test", 2)):
        write_shard(tmp_path / f"{name}-000.tar", {f"{i}": (picture(i), i % 2) for i in range(count)})
    data = ImageData(source="webdataset", root=str(tmp_path), size=[8, 8], workers=0)
    assert len(data.train_dataset()) == 6
    assert (len(data.held_out("val", (8, 8))), len(data.held_out("test", (8, 8)))) == (4, 2)


def test_links_to_shards_of_other_names(tmp_path):
    for split, count in (("train", 6), ("validation", 3)):
        write_shard(tmp_path / f"imagenet1k-{split}-0000.tar", {f"{i}": (picture(i), i % 3) for i in range(count)})
        (tmp_path / "links" / split).mkdir(parents=True)
        (tmp_path / "links" / split / "0.tar").symlink_to(tmp_path / f"imagenet1k-{split}-0000.tar")
    with pytest.raises(FileNotFoundError, match=r"or train/\*\.tar and val/\*\.tar"):
        open_source("webdataset", tmp_path, train=True)
    assert [len(open_source("webdataset", tmp_path / "links", train)) for train in (True, False)] == [6, 3]


@pytest.mark.parametrize("kept", [0, 20 * 2048, 20 * 2048 + 700])
def test_a_shard_that_was_cut_off_is_named(tmp_path, kept):  # the library would read what there is
    for shard in range(2):
        write_shard(tmp_path / f"train-{shard}.tar", {f"{i}": (picture(i), i % 3) for i in range(100)})
    path = tmp_path / "train-1.tar"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FileNotFoundError, match=rf"1 of 2 shards .* cut off .*: {path}\. Copy them again"):
        open_source("webdataset", tmp_path, train=True)


@pytest.mark.parametrize("before", [0, 9])
def test_samples_that_cannot_be_read_are_one_message(tmp_path, before):
    write_shard(tmp_path / "train-0.tar", {f"{i}": (picture(i), i) for i in range(before)} | {"b": (picture(0), "bee")})
    with pytest.raises(FileNotFoundError, match=r"(?s)cannot be read: invalid literal .* cls, the number of the class"):
        open_source("webdataset", tmp_path, train=True)


def test_a_sample_without_an_image_is_an_error():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    images = datasets.Dataset.from_dict({"image": [picture(0), None], "label": [0, 1]}, features=features)
    with pytest.raises(OSError, match="it has no image, in which"):
        hub.HubImages(images)[1]
