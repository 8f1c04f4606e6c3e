"""Generators that augmentations hold themselves follow the seed of the run, too."""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from train.data.held_generators import held_generators
from train.data.loader import KeyedDataset

TABLE = np.random.default_rng(3)


def draw_by_a_module() -> float:
    return TABLE.random()


class Shared:
    """Two transforms that hold one generator, as those of albumentations do."""

    def __init__(self):
        self.generator = random.Random(3)
        self.parts = [SimpleNamespace(draw=self.draw), SimpleNamespace(draw=self.draw)]

    def draw(self) -> float:
        return self.generator.random()

    def __call__(self) -> float:
        return sum(part.draw() for part in self.parts)


class OfAClass:
    generator = np.random.RandomState(3)

    def __call__(self) -> float:
        return self.generator.rand()


class OfTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self) -> float:
        return float(torch.rand((), generator=self.generator))


def within_a_function():
    generator = np.random.default_rng(3)
    return lambda: generator.random()


def with_defaults():
    def draw(first=np.random.default_rng(3), *, second=random.Random(3)) -> float:  # noqa: B008
        return first.random() + second.random()

    return draw


HELD = {
    "numpy": lambda: functools.partial(np.random.Generator.random, np.random.default_rng(3)),
    "a function": within_a_function,
    "defaults": with_defaults,
    "a module": lambda: draw_by_a_module,
    "shared": Shared,
    "a class": OfAClass,
    "torch": lambda: torch.nn.ModuleList([OfTorch()])[0],
}


class Held(Dataset):
    """Items that are drawn from generators of their own, one of them for nothing else than to be another one."""

    def __init__(self, name: str):
        self.other, self.draw = np.random.default_rng(3), HELD[name]()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int):
        return torch.tensor([self.draw(), self.other.random()], dtype=torch.float64), 0


@pytest.mark.parametrize("name", HELD)
def test_generators_that_augmentations_hold(name):
    """albumentations 2473, MONAI 1068: augmentations followed no seed but one of their own."""
    keys = [(0, 0), (0, 1), (1, 0), (0, 0)]
    data = KeyedDataset(Held(name), 5)
    here = [data[key][0] for key in keys]
    there = DataLoader(KeyedDataset(Held(name), 5), sampler=keys[1:], batch_size=None, num_workers=1)
    assert all(torch.equal(a, b) for a, (b, _) in zip(here[1:], there, strict=True))
    assert len({float(x[0]) for x in here}) == 3
    assert torch.equal(here[0], here[3])
    assert not torch.equal(here[0], KeyedDataset(Held(name), 6)[0, 0][0])
    assert here[0][0] != here[0][1]  # each has a stream of its own


def test_datasets_that_are_long_or_refer_to_themselves():
    data = Held("numpy")
    data.itself, data.samples, data.none = data, [("path", 0)] * 2_000_000, None
    assert len(held_generators(data)) == 2


@pytest.mark.parametrize("name", HELD)
def test_loading_draws_nothing_from_a_generator_that_has_other_uses(name):
    random_numbers = []
    for loads in (0, 3):
        data = Held(name)
        for index in range(loads):
            KeyedDataset(data, 5)[0, index]
        random_numbers.append([data.draw(), data.other.random()])
    if name in ("a module", "a class"):  # which hold one generator for all objects: it went on
        assert random_numbers[0][0] != random_numbers[1][0]
    else:
        assert random_numbers[0][0] == random_numbers[1][0]
    assert random_numbers[0][1] == random_numbers[1][1]
