"""Measure a table, print it, and write its files: CSV of all cells, Markdown, LaTeX and the figure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.papers.cells import MEASURED, all_cells, correct_tests
from eval.papers.group import Group
from eval.papers.listing import note_on_stored
from eval.papers.printed import blocks, heading, notes
from eval.papers.results import Results
from eval.papers.table import TableFile
from eval.report import Report, Row, environment, write_csv
from eval.run import publish
from train.data.sizes import Views
from train.runs.history import read_history
from train.runs.recorded import devices_in_turn


def measure_table(
    table: TableFile, groups: Sequence[Group], options: argparse.Namespace, device: torch.device
) -> tuple[list[dict[str, Any]], list[Row]]:
    """Return all cells, and the points of all training curves where the figure shows them."""
    budget = table.budget(options.budget)
    images = budget.images if options.images is None else options.images
    references = {name: row.reference or table.reference for name, row in table.rows.items()}
    by_key = {group.key: group for group in groups}
    results = Results(by_key, device, options.split, images, Views.of(budget.views), references)
    cells = list(all_cells(table, results))
    correct_tests(table, cells)
    return cells, list(training_curves(results)) if table.figure.get("kind") == "curves" else []


def training_curves(results: Results) -> Iterator[Row]:
    """Yield the validation accuracies of all finished runs, by epoch."""
    for group in results.groups.values():
        names = {"data": group.data, "row": group.row, "attention": group.attention}
        for seed, run in group.finished().items():
            curve = results.curve(run)
            for epoch, value in zip(curve.epochs, curve.values, strict=False) if curve else ():
                yield {**names, "seed": seed, "epoch": epoch, "accuracy": round(100 * value, 4)}


def devices_of(groups: Sequence[Group]) -> list[str]:
    """Return the distinct devices of the finished runs, with their versions.

    A run that was resumed on another device has several, in order.
    """
    runs = (path for group in groups for path in group.finished().values())
    lines = (", then ".join(devices_in_turn(read_history(run))) for run in runs)
    return list(filter(None, dict.fromkeys(lines)))


def write_table(
    table: TableFile,
    groups: Sequence[Group],
    folder: Path,
    options: argparse.Namespace,
    device: torch.device,
    command: str,
) -> None:
    """Measure a table, print it and write its files; `command` is the one that makes it, without its budget."""
    from eval.papers.figure import draw_table
    from eval.plotting.options import draw

    cells, curves = measure_table(table, groups, options, device)
    title = heading(table, options.budget, options.split)
    head = environment(header_words(options), device)
    below = notes(table, options.budget, cells, command, head[1].removeprefix("device: "), options.split)
    below += [f"Trained on: {line}." for line in devices_of(groups)]
    below += [] if any(cell["state"] == MEASURED for cell in cells) else note_on_stored(table)
    described = [f"title: {title}", *(f"note: {line}" for line in below)]
    report = Report(folder, stem_of(options), [*head, *described], has_folder=False)
    report.write(cells)
    written = [report.csv]
    if curves:
        written.append(report.csv.with_suffix(".curves.csv"))
        write_csv(written[-1], curves, head)
    figure = draw(partial(draw_table, table, cells, curves), options)
    written += publish(blocks(table, cells), below, figure, report.csv, options, title)
    if figure is None:
        print("\nThere is no figure yet: nothing that it would show is measured.")
    print("", *written, sep="\n")


def image_options(options: argparse.Namespace) -> list[str]:
    """Return the options of a command line that choose other images than those of the budget."""
    split = ["--split", options.split] if options.split != "test" else []
    return split + (["--images", str(options.images)] if options.images is not None else [])


def header_words(options: argparse.Namespace) -> list[str]:
    """Return the arguments that the first lines of a table's CSV file name, without the places of files."""
    return ["table", options.name, "--budget", options.budget, *image_options(options)]


def stem_of(options: argparse.Namespace) -> str:
    """Return the name of a table's files, which names other images than those of the budget.

    It is BUDGET, or for example BUDGET.val or BUDGET.40-images, so that one result does not replace another.
    """
    words = [options.budget] if options.split == "test" else [options.budget, options.split]
    return ".".join([*words, f"{options.images}-images"] if options.images is not None else words)
