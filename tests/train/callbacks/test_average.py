"""The average of the weights: where it is held."""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L
import torch

from train.callbacks.average import WarmAverage


class Module(L.LightningModule):
    """A module with one weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))


def test_the_average_is_on_the_device_of_the_training():
    """Lightning sets callbacks up before it moves the module."""
    callback, device = WarmAverage(0.9), torch.device("meta")
    callback.setup(SimpleNamespace(strategy=SimpleNamespace(root_device=device)), Module(), "fit")
    assert {x.device for x in callback._average_model.parameters()} == {device}
