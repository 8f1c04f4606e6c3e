"""Print a table and write its files: CSV of all cells, Markdown, LaTeX and the figure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.papers.blocks import blocks, heading, notes
from eval.papers.group import Group
from eval.papers.records import all_records, correct_tests
from eval.papers.results import Results
from eval.papers.table_head import header_words, lines_of, stem_of
from eval.papers.table_spec import TableFile
from eval.report import Report, Row, environment, write_csv
from eval.run import publish
from train.data.sizes import Views
from train.runs.history import read_history
from train.runs.recorded import devices_in_turn


def measure_table(
    table: TableFile, groups: Sequence[Group], options: argparse.Namespace, device: torch.device
) -> tuple[list[dict[str, Any]], list[Row]]:
    """Return the records of all cells, and the points of all training curves."""
    budget = table.budget(options.budget)
    images = budget.images if options.images is None else options.images
    references = {name: row.reference or table.reference for name, row in table.rows.items()}
    by_key = {group.key: group for group in groups}
    results = Results(by_key, device, options.split, images, Views.of(budget.views), references)
    records = list(all_records(table, results))
    correct_tests(table, records)
    curves = training_curves(results) if table.figure.get("kind") == "curves" else []
    return records, curves


def training_curves(results: Results) -> list[Row]:
    """Return the validation accuracies of all finished runs, by epoch."""
    rows: list[Row] = []
    for group in results.groups.values():
        names = {"data": group.data, "row": group.row, "attention": group.attention}
        for seed, run in group.finished().items():
            curve = results.curve(run)
            for epoch, value in zip(curve.epochs, curve.values, strict=False) if curve else ():
                rows.append({**names, "seed": seed, "epoch": epoch, "accuracy": round(100 * value, 4)})
    return rows


def devices_of(groups: Sequence[Group]) -> list[str]:
    """Return the distinct devices of the finished runs, with their versions.

    A run that was resumed on another device has several, in order.
    """
    runs = [path for group in groups for path in group.finished().values()]
    lines = [", then ".join(devices_in_turn(read_history(run))) for run in runs]
    return [line for line in dict.fromkeys(lines) if line]


def show_table(
    table: TableFile,
    records: Sequence[dict[str, Any]],
    curves: Sequence[Row],
    folder: Path,
    options: argparse.Namespace,
    device: torch.device,
    command: str,
    trained: Sequence[str],
) -> None:
    """Print a table and write its files.

    Args:
        table: the table.
        records: records of all cells.
        curves: validation accuracies of the training runs, for the figure.
        folder: folder of the files.
        options: options of the command line.
        device: device on which the table was measured.
        command: command that makes the table, without its budget.
        trained: devices of the training runs, from `devices_of`.
    """
    from eval.papers.figure import draw_table
    from eval.plotting.options import draw

    title = heading(table, options.budget, table.budget(options.budget), options.split)
    head = environment(header_words(options), device)
    measured_on = head[1].removeprefix("device: ")
    below = notes(table, options.budget, records, command, measured_on, options.split)
    below += [f"Trained on: {line}." for line in trained]
    described = [*lines_of(table, options.name), f"title: {title}", *(f"note: {line}" for line in below)]
    report = Report(folder, stem_of(options), [*head, *described], has_folder=False)
    report.write(records)
    written = [report.csv]
    if curves:
        written.append(report.csv.with_suffix(".curves.csv"))
        write_csv(written[-1], curves, head)
    figure = draw(partial(draw_table, table, records, curves), options)
    written += publish(blocks(table, records), below, figure, report.csv, options, title)
    if figure is None:
        print("\nThere is no figure yet: nothing that it would show is measured.")
    print("", *written, sep="\n")
