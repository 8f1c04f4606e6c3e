"""What was measured by other code, or on another kind of device, is measured again."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eval import result_cache
from eval.accuracy import compare
from eval.cli import main
from eval.papers import command, training
from eval.report import read_csv
from eval.result_cache import modules_digest, source_digest
from tests.helpers.checkpoints import CONFIG, save
from tests.helpers.tiny_images import write_folder
from train.data.module import ImageData

SOURCE = """SCALE = 2.0


def scaled(x):
    return x * SCALE
"""
SAME = '''"""Numbers."""
SCALE = 2.0  # twice


def scaled(x):
    """Return it scaled."""
    # by the number above
    return (x * SCALE)
'''


@pytest.fixture(autouse=True)
def next_process():
    """Forget the digests of this process, before and after."""
    source_digest.cache_clear()
    yield source_digest.cache_clear
    source_digest.cache_clear()


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Return what is measured, in the order of the calls."""
    calls: list[str] = []

    def count(module, name):
        measure = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **options: calls.append(name) or measure(*args, **options))

    count(result_cache, "measure_images")
    count(compare, "peak_bytes")
    return calls


def test_digest_of_sources(tmp_path, next_process):
    """Of code, and not of words about it."""
    file = tmp_path / "part" / "of.py"
    file.parent.mkdir()
    digests = []
    for source in (SOURCE, SAME, SOURCE.replace("2.0", "3.0")):
        file.write_text(source)
        next_process()
        digests.append((source_digest(tmp_path), source_digest(file)))
    assert digests[0] == digests[1]
    assert not {*digests[1]} & {*digests[2]}
    (tmp_path / "more.py").write_text("")
    assert source_digest(tmp_path) == digests[2][0]  # of what this process has imported
    next_process()
    assert source_digest(tmp_path) != digests[2][0]


def test_other_code_measures_again(tmp_path, monkeypatch, measured, next_process):
    file, run = tmp_path / "of.py", str(save(tmp_path / "one"))
    for name in ("OF_IMAGES", "OF_COSTS"):
        monkeypatch.setattr(result_cache, name, [str(file)])
    for source, times in ((SOURCE, 1), (SAME, 1), (SOURCE.replace("2.0", "3.0"), 2), (SOURCE, 2)):
        file.write_text(source)
        next_process()
        main(["compare", run, "--resolutions", "60", "--images", "8"])
        assert measured == ["measure_images", "peak_bytes"] * times


def test_all_code_of_results_is_there():
    for path in {*result_cache.OF_IMAGES, *result_cache.OF_COSTS}:
        assert (result_cache.ROOT / path).exists()


def test_costs_of_another_kind_of_gpu(tmp_path, monkeypatch, measured):
    run = str(save(tmp_path / "one"))
    for name, times in (("NVIDIA A100", 1), ("NVIDIA H200", 2), ("NVIDIA A100", 2)):
        monkeypatch.setattr(compare, "machine", lambda device, name=name: name)
        main(["compare", run, "--resolutions", "60", "--images", "8"])
        assert measured.count("peak_bytes") == times
    assert measured.count("measure_images") == 1


def test_costs_of_other_widths_of_a_decay(tmp_path, measured):
    """Its width decides how it is summed, and that the operations: a run that went on has others."""
    torch.manual_seed(0)
    path = save(tmp_path / "one", replace(CONFIG, locality="gaussian"))
    content = torch.load(path, weights_only=True)
    counted = []
    for raw in (0.0, -3.0):
        content["state_dict"] |= {k: v.fill_(raw) for k, v in content["state_dict"].items() if k.endswith("raw_sigma")}
        torch.save(content, path)
        main(["compare", str(path), "--resolutions", "480", "--images", "1", "--out", str(tmp_path / "out")])
        counted.append(read_csv(tmp_path / "out" / "compare.csv")[1][0]["GMACs"])
    assert counted[0] != counted[1]


FOLDER = replace(CONFIG, image_size=24, in_channels=3, num_classes=2)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return the checkpoint of a model of a folder of images, which is `images` beside its run."""
    write_folder(tmp_path / "images", 24, 4, classes=2)
    data = ImageData("folder", str(tmp_path / "images"), size=[24, 24], workers=0, mean=[0.5] * 3, std=[0.2] * 3)
    data.setup()
    return save(tmp_path / "one", FOLDER, data)


def test_an_image_that_was_replaced_is_measured_again(folder, tmp_path, measured):
    """By another one of so many bytes."""
    image = next((tmp_path / "images" / "test").rglob("*.png"))
    for times in (1, 2):
        main(["compare", str(folder), "--resolutions", "24"])
        assert measured.count("measure_images") == times
        before = image.stat()
        image.write_bytes(image.read_bytes())
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
        assert image.stat().st_size == before.st_size
    main(["compare", str(folder), "--resolutions", "24"])
    main(["compare", str(folder), "--resolutions", "24"])
    assert measured.count("measure_images") == 3


@pytest.mark.parametrize(("name", "value"), [("mean", [0.4] * 3), ("std", [0.3] * 3), ("background", [0, 0, 0])])
def test_images_that_are_normalised_otherwise_are_measured_again(folder, measured, name, value):
    content = torch.load(folder, weights_only=True)
    for times in (1, 2):
        main(["compare", str(folder), "--resolutions", "24"])
        assert measured.count("measure_images") == times
        for part in (content["ImageData"], content["ImageData"]["config"]):
            part |= {name: value} if name in part else {}
        torch.save(content, folder)


def test_modules_of_the_user(tmp_path, monkeypatch, next_process):
    """A package with all of its files."""
    package = tmp_path / "of_mine"
    package.mkdir()
    for name in ("__init__", "part"):
        (package / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert modules_digest("of_mine") == []
    __import__("of_mine")
    before = modules_digest("of_mine")
    (package / "part.py").write_text("SCALE = 4.0")
    next_process()
    assert modules_digest(["of_mine"]) != before
    del sys.modules["of_mine"]


def test_a_table_takes_the_code_before_its_trainings(tmp_path, monkeypatch):
    """Hours later the files may be others than what it has imported."""

    def train_missing(*_):
        assert source_digest.cache_info().currsize == len(result_cache.OF_IMAGES)
        return 0

    monkeypatch.setattr(training, "train_missing", train_missing)
    command.train(SimpleNamespace(title="a table"), [], tmp_path, Namespace(no_train=False, threads=1, jobs=1))
