"""Make a table by an evaluation of `python -m eval`, with its options and the trained models (if it takes any)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from eval.evaluations import EVALUATIONS
from eval.papers.group import Group, last_checkpoint
from eval.papers.printed import heading
from eval.papers.table import TableFile
from eval.papers.write import header_words, image_options, stem_of
from eval.report import command_line, is_of_command
from eval.run import add_options, run
from train.utils.imports import module_names


def arguments_of(table: TableFile, groups: Sequence[Group], folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the arguments of the evaluation.

    Raises:
        ValueError: an evaluation that needs trained models, of which there are none.
    """
    arguments = [*table.budget(options.budget).arguments, "--out", str(folder), *image_options(options)]
    if not EVALUATIONS[table.evaluation].load().on_cpu:
        arguments += ["--device", options.device]
    if table.rows:
        finished = [group for group in groups if group.finished()]
        if not finished:
            raise ValueError(f"{table.name} needs trained models, and none is finished: leave --no-train out.")
        paths = [str(last_checkpoint(run)) for group in finished for run in group.finished().values()]
        arguments += [*([] if table.evaluation == "attention" else ["--checkpoint"]), *paths]
        roots = {str(group.overrides["data.root"]) for group in finished if "data.root" in group.overrides}
        arguments += ["--root", *roots] if len(roots) == 1 else []
    own = [group.settings().get("imports") for group in groups if group.folders]
    imports = dict.fromkeys(name for each in (table.imports, *own) for name in module_names(each))
    arguments += ["--imports", *imports] if imports else []
    shown = {"--width": options.width, "--title": options.title, "--intervals": options.intervals}
    arguments += [f"{name}={value}" for name, value in shown.items() if value is not None]
    return [*arguments, "--table", *options.table, "--format", *options.format]


def run_evaluation(table: TableFile, groups: Sequence[Group], folder: Path, options: argparse.Namespace) -> None:
    """Run the evaluation, or print its earlier results with the same arguments; its files are named by `stem_of`."""
    arguments = arguments_of(table, groups, folder, options)
    kept, words = folder / f"{stem_of(options)}.md", header_words(options)
    if options.no_train and kept.is_file() and is_of_command(kept.with_suffix(".csv"), [command_line(words)]):
        print(kept.read_text(encoding="utf-8"))
        return
    parser = argparse.ArgumentParser(prog=f"python -m eval {table.evaluation}")
    parser.set_defaults(command=table.evaluation)
    add_options(parser, EVALUATIONS[table.evaluation].load())
    title = heading(table, options.budget, options.split)
    below = [f"What differs: {table.differs}"] if table.differs else []
    if status := run(parser.parse_args(arguments), words, stem_of(options), title, below):
        raise SystemExit(status)
