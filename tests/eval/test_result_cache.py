"""What was measured by other code, or on another kind of device, is measured again."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest

from eval import result_cache
from eval.accuracy import compare
from eval.cli import main
from eval.papers import command, training
from eval.result_cache import modules_digest, source_digest
from tests.helpers.checkpoints import save

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
