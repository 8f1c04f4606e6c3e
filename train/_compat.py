"""Workarounds that need private names of Lightning, jsonargparse and torch, all in one file.

Tested on Lightning 2.6, jsonargparse 4.53, torch 2.11 and 2.14. No other module of `train` uses their private names.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser
from typing import Any

import lightning as L
from jsonargparse import DefaultHelpFormatter
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn


class AskedSettingsCLI(LightningCLI):
    """Lightning's command line, in which given settings take precedence over those of a resumed checkpoint.

    Lightning 2.6 replaces them by the checkpoint's hyperparameters, and has no public switch for it.
    """

    def _parse_ckpt_path(self) -> None:
        pass


class ShortHelp(DefaultHelpFormatter):
    """jsonargparse's help with a usage of one line, and the first sentence alone on each of Lightning's options.

    Their descriptions list every class of Lightning, and the usage would have 180 lines.
    """

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        command = self._prog.replace(" [options]", "")
        super().add_usage(
            f"{command} [--config RECIPE.yaml] [--FIELD VALUE ...]" if prefix is None else usage, [], [], prefix
        )

    def _expand_help(self, action: Action) -> str:
        text = super()._expand_help(action)
        return re.split(r"(?<!e\.g)\. | \(type: ", text)[0] if action.dest.startswith("trainer.") else text


def option_names(parser: ArgumentParser) -> list[str]:
    """Return the names of all options of a parser, of which argparse has no public list."""
    return [action.dest for action in parser._actions]


def subcommands_of(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of subcommands by name, of which argparse has no public list."""
    return next((dict(a.choices) for a in parser._actions if isinstance(a.choices, dict)), {})


def count_whole_epochs(trainer: L.Trainer) -> None:
    """Let Lightning count a finished epoch of a checkpoint as finished, also under `max_steps`.

    Lightning 2.6 treats every epoch of such a checkpoint as interrupted, so that an empty epoch would follow. It has no
    public switch for it.
    """
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]


def share_between_all_processes(strategy: ModelParallelStrategy) -> None:
    """Let a strategy shard a model between all processes, whatever their number.

    Lightning 2.6 uses the number of machines by default, and knows the number of processes only after construction.
    """
    strategy._data_parallel_size = strategy.num_nodes * strategy.num_processes


def is_compiled(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called, for which torch has no public query."""
    return module._compiled_call_impl is not None
