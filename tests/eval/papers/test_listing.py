"""`eval table --list` says what is missing, and how long training runs take even so."""

from __future__ import annotations

import pytest
import torch
import yaml

from eval.papers import estimate, listing, read
from eval.papers.estimate import duration
from eval.papers.group import Group
from eval.papers.listing import read_times, time_left
from eval.papers.plan import make_plan
from eval.papers.read import all_tables, files_by_name, find_table
from performer_string import ViTConfig
from train.runs.environment import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Return a function that lists the tables of a budget without any images, at a millisecond an image."""
    monkeypatch.setattr(estimate, "seconds_per_image", lambda group, device: 0.001)

    def run(budget: str) -> dict[str, list[str]]:
        text = listing.list_tables(budget, tmp_path / "nowhere", tmp_path, CPU)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:-2]]
        return {row[0]: row[4:] for row in rows}

    return run


def test_trainings_without_images_have_times_and_say_what_is_missing(listed):
    rows = listed("cpu")
    assert rows["liere-flops"] == ["none", "", "", ""]
    assert rows["liere-arrow"][::3] == ["0 of 12 done", ""]
    # 24 training runs of 3 epochs of 10,000 images
    assert rows["cayley-sparsity"] == ["0 of 24 done", "30 s to 30 s", "12 min", "no mnist images"]
    assert rows["liere-resolution"][::3] == ["0 of 18 done", "no imagenette images"]


def test_the_runs_of_one_table_are_listed_with_the_results_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "seconds_per_image", lambda group, device: 0.001)
    table = find_table("liere-arrow")
    text = listing.list_runs(table, "cpu", make_plan(table, "cpu", None, tmp_path), CPU)
    assert "comes with" not in text  # a column of the list of all tables
    assert text.endswith("come with the repository: experiments/papers/liere-arrow/cpu.md.")
    (tmp_path / "liere-arrow.yaml").write_text(table.path.read_text())  # a table of the user
    assert listing.note_on_stored(find_table(str(tmp_path / "liere-arrow.yaml"))) == []
    for name in files_by_name():
        for line in listing.note_on_stored(find_table(name)):
            assert all((ROOT / path).is_file() for path in line.removesuffix(".").rpartition(": ")[2].split(", "))


def test_times_are_kept_for_the_report(listed, tmp_path):
    listed("cpu")
    listed("folder")
    times = {(time.table, time.budget): (time.trainings, time.seconds) for time in read_times(tmp_path)}
    assert times["cayley-sparsity", "cpu"] == (24, 720)
    assert not {("liere-2d", "folder"), ("liere-flops", "cpu")} & times.keys()


def test_a_time_is_not_known_without_the_number_of_images(listed):
    each, left, needs = listed("folder")["liere-2d"][1:]
    assert (each, left) == ("", "not known")
    assert needs.startswith("no folder images in ")


def test_the_number_of_images_of_a_table_file(tmp_path):
    groups = make_plan(find_table("liere-3d"), "full", tmp_path, tmp_path)
    times = estimate.estimates([group for group in groups if group.left()], CPU, Fixed())
    assert set(times.values()) == {200 * 9537.0}


class Fixed(dict[str, float]):
    """A second for each image of any model."""

    def __contains__(self, model):
        return True

    def __getitem__(self, model):
        return 1.0


def test_time_that_is_left(tmp_path):
    known, other = (Group("set", name, "", "set", tmp_path, {}, seeds=[0, 1, 2]) for name in ("one", "two"))
    assert time_left([], {}) == ""
    assert time_left([known, other], {}) == "not known"
    assert time_left([known], {known.model: 20.0}) == "1.0 min"
    assert time_left([known, other], {known.model: 20.0}) == "over 1.0 min"


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (720, "12 min"), (2.1 * 86400, "2.1 days"), (40 * 365.25 * 86400, "40 years")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


def test_a_large_model_takes_fewer_images():
    """Eight videos in a ViT-B needed 20 GB."""
    assert estimate.images_of_step(ViTConfig(variant="micro", image_size=32, patch_size=4)) == estimate.ON_CPU
    assert estimate.images_of_step(ViTConfig(variant="base", image_size=32, patch_size=4)) == 4
    assert estimate.images_of_step(ViTConfig(variant="base", image_size=(8, 224, 224), patch_size=(2, 16, 16))) == 1


def test_other_work_on_the_processor_does_not_count(monkeypatch):
    monkeypatch.setattr(estimate, "seconds", lambda call, device: call() or 1e9)
    calls = []
    assert estimate.own_seconds(lambda: calls.append(1), CPU) < 1e9
    assert estimate.own_seconds(lambda: calls.append(1), torch.device("cuda")) == 1e9
    assert len(calls) == 2


def test_a_step_of_a_model_with_classes_of_pixels(tmp_path):
    small = {"model.vit.image_size": 16, "model.vit.depth": 1}
    group = Group("cells", "one", "", "cells", ROOT / "train/configs/segment.yaml", small)
    assert estimate.seconds_per_image(group, CPU) > 0


def test_a_slow_model_takes_one_step(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(estimate, "own_seconds", lambda step, device: steps.append(step()) or 2 * estimate.SLOW)
    group = make_plan(find_table("liere-arrow"), "cpu", None, tmp_path)[0]
    assert estimate.seconds_per_image(group, CPU) == 2 * estimate.SLOW / estimate.ON_CPU
    assert len(steps) == 1


def test_an_installation_without_the_tables_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "PAPERS", tmp_path / "experiments")
    for call in (lambda: list(all_tables()), lambda: find_table("liere-2d")):
        with pytest.raises(FileNotFoundError, match=r"of the repository, .*clone the repository"):
            call()


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"max_epochs": 3}, 3 * 45_000),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 3 * 22_500),
        ({"max_epochs": 3, "limit_train_batches": 1.0}, 3 * 45_000),
        ({"max_epochs": 3, "limit_train_batches": 2}, 3 * 200),
        ({"max_steps": 1000}, 100_000),
        ({"max_steps": 1000, "accumulate_grad_batches": 4}, 400_000),
        ({"max_steps": 1000, "accumulate_grad_batches": 4, "max_epochs": 2}, 90_000),
    ],
)
def test_images_of_a_training(tmp_path, trainer, expected):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"data": {"source": "cifar10", "batch_size": 100}, "trainer": trainer}))
    assert estimate.training_images(Group("cifar10", "one", "", "cifar10", recipe, {})) == expected


def test_images_of_a_generated_task(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"data": {"source": "arrow", "train_size": 640}, "trainer": {"max_epochs": 5}}))
    assert estimate.training_images(Group("arrow", "one", "", "arrow", recipe, {})) == 5 * 640
