"""Private names of Lightning, jsonargparse and torch that training cannot do without, each with the public way.

Tested on Lightning 2.6, jsonargparse 4.53, torch 2.11 and 2.14. Nothing else in `train` uses a private name of them.
"""

from __future__ import annotations

from argparse import ArgumentParser

import lightning as L
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn


class AskedSettingsCLI(LightningCLI):
    """Lightning's command line, with the settings that are asked for also where a checkpoint is resumed.

    Lightning 2.6 lets hyper-parameters of the checkpoint replace them and has no public switch for it.
    """

    def _parse_ckpt_path(self) -> None:
        pass


def option_names(parser: ArgumentParser) -> list[str]:
    """Return the names of all options of a parser; argparse has no public list of them."""
    return [action.dest for action in parser._actions]


def subcommands_of(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of the subcommands by name; argparse has no public list of them."""
    return next((dict(a.choices) for a in parser._actions if isinstance(a.choices, dict)), {})


def count_whole_epochs(trainer: L.Trainer) -> None:
    """Let Lightning count an epoch of a checkpoint as done where it was, also under `max_steps`.

    Lightning 2.6 takes every epoch of such a checkpoint for one that was left within it, so that an empty one would
    count. It has no public switch for it.
    """
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]


def share_between_all_processes(strategy: ModelParallelStrategy) -> None:
    """Let a strategy shard a model between all processes, however many there are.

    Lightning 2.6 takes the number of machines for want of one, and knows that of processes only after it was built.
    """
    strategy._data_parallel_size = strategy.num_nodes * strategy.num_processes


def is_compiled(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called; torch has no public way to ask."""
    return module._compiled_call_impl is not None
