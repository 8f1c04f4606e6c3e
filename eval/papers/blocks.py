"""The printed form of a table: a line for each set and row, with kinds of attention side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from eval.papers.records import MEASURED, NOT_BUILT, NOT_RUN, cell_of
from eval.papers.table_spec import Budget, TableFile
from eval.report import Row, unique
from eval.seeds import FEW

OUTSIDE = "not in this budget"
NO_BUDGET = "no budget of this table has them"
SPLITS = {"test": "test", "val": "validation"}
TIMES = ("ms-per-batch", "ms-per-image")
WIDEST = 9  # most columns of figures side by side; a wider table continues below


def heading(table: TableFile, budget_name: str, budget: Budget, split: str = "test") -> str:
    """Return the title with the budget, and with the split where it is not `test`."""
    words = f"{budget_name} budget{f': {budget.says}' if budget.says else ''}"
    return f"{table.title} ({words})" if split == "test" else f"{table.title} ({words}; {SPLITS[split]} images)"


def label_of(table: TableFile, axis: str, name: str) -> str:
    """Return the label of a set, a row or a kind of attention; its name where it has no label."""
    specs: Any = {"data": table.data, "row": table.rows}.get(axis, {})
    return (specs[name].label or name) if name in specs else name


def data_label(table: TableFile, record: Row) -> str:
    """Return the label of a set, with that of the source's set that it stands for."""
    names = [label_of(table, "data", name) for name in (record["data"], record["stands for"])]
    return names[0] if names[0] == names[1] else f"{names[0]}, published: {names[1]}"


def shown_lines(records: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the set and row of each printed line: those of the budget, and others with published figures."""
    shown = [r for r in records if r["state"] != NOT_RUN or r["why"] != OUTSIDE or r["published"]]
    return list(dict.fromkeys((r["data"], r["row"]) for r in shown))


def blocks(table: TableFile, records: Sequence[Row]) -> list[list[dict[str, Any]]]:
    """Return the rows of the table, in blocks that are not too wide."""
    cells = {(r["data"], r["row"], r["attention"], r["column"]): r for r in records}
    lines = shown_lines(records)
    attentions = unique(records, "attention")
    several = len({data for data, _ in lines}) > 1
    parts: list[dict[str, list[str]]] = []  # columns by their headings, with a cell for each line
    for column in table.columns:
        prefix = f"{column}: " if len(table.columns) > 1 else ""
        part: dict[str, list[str]] = {}
        theirs = {a: [cells[(*line, a, column)]["published"] for line in lines] for a in attentions}
        alike = all(texts == theirs[attentions[0]] for texts in theirs.values())
        if alike and any(theirs[attentions[0]]):
            part[f"{prefix}published"] = theirs[attentions[0]]
        for attention in attentions:
            if not alike and any(theirs[attention]):
                part[f"{prefix}published {attention}"] = theirs[attention]
            head = f"{prefix}{attention}" if attention else column
            part[head] = [cell_of(table, cells[(*line, attention, column)]) for line in lines]
        parts.append(part)
    chosen: list[list[dict[str, list[str]]]] = [[]]
    for part in parts:
        if chosen[-1] and sum(map(len, chosen[-1])) + len(part) > WIDEST:
            chosen.append([])
        chosen[-1].append(part)
    result = []
    for block in chosen:
        columns = {head: texts for part in block for head, texts in part.items()}
        result.append(
            [
                {
                    **(
                        {"images": data_label(table, cells[(*line, attentions[0], next(iter(table.columns)))])}
                        if several
                        else {}
                    ),
                    "model": label_of(table, "row", line[1]),
                    **{head: texts[number] for head, texts in columns.items()},
                }
                for number, line in enumerate(lines)
            ]
        )
    return result


def notes(
    table: TableFile, budget_name: str, records: Sequence[Row], command: str, device: str, split: str = "test"
) -> list[str]:
    """Return the notes below a table: differences to the source, intervals, and missing cells with their command.

    Args:
        table: the table.
        budget_name: name of the budget in the table.
        records: records of all cells.
        command: command that makes the table, without its budget.
        device: name of the device on which the table was measured.
        split: split of the images, `test` or `val`.
    """
    lines = [f"Source: {table.source}."] if table.source else []
    if any(record["published"] for record in records):
        lines.append(f"Published figures: {table.places()}.")
    if table.differs:
        lines.append(f"What differs: {table.differs}")
    lines += attention_note(table)
    if table.aside:
        lines.append(f"In the source: {table.aside}")
    seeds = max((int(record["seeds"]) for record in records if record["state"] == MEASURED), default=0)
    measures = {spec["measure"] for spec in table.columns.values()}
    if seeds and measures & {"accuracy", "loss", "relative-drop", "difference"}:
        images = max((int(record["images"]) for record in records if record["images"] != ""), default=0)
        views = table.budget(budget_name).views
        of = f"{images} {SPLITS[split]} {'images' if views == '1x1' else f'videos, each by the mean of {views} views'}"
        over = (
            f"{of} and {seeds} seeds. {FEW}"
            if seeds > 1
            else f"{of}; one seed, so nothing on the spread of training runs."
        )
        lines.append(f"Intervals: 95 %, bootstrap (B = 1000) over {over}")
    lines += note_on_tests(table, records)
    of_time = {name for name, spec in table.columns.items() if spec["measure"] in TIMES}
    if timed := unique((r for r in records if r["column"] in of_time and r["value"] != ""), "column"):
        lines.append(f"{', '.join(timed)}: inference, measured on {device}. Training runs may have had another device.")
    lines += missing_cells(table, budget_name, records, command)
    for why in unique((record for record in records if record["state"] == NOT_BUILT), "why"):
        models = unique((r for r in records if r["state"] == NOT_BUILT and r["why"] == why), "row")
        labels = [label_of(table, "row", str(row)) for row in models]
        lines.append(f"{', '.join(labels)}: {why}.")
    return lines


def note_on_tests(table: TableFile, records: Sequence[Row]) -> list[str]:
    """Return a note on the tests of a table, with the rows that have another reference."""
    tested = [record for record in records if record["holm"] != ""]
    by_reference: dict[str, list[str]] = {}
    for row in map(str, unique(tested, "row")):
        by_reference.setdefault(table.rows[row].reference or table.reference, []).append(label_of(table, "row", row))
    if not by_reference:
        return []
    texts = [f"to {label_of(table, 'row', table.reference)}"] if by_reference.pop(table.reference, None) else []
    for name, labels in by_reference.items():
        quoted = ", ".join(f'"{label}"' for label in labels)
        texts.append(f'of {quoted} to "{label_of(table, "row", name)}"')
    to = "; ".join(texts) + ("," if by_reference else "")
    kinds = {table.columns.get(str(record["column"]), {}).get("test", "paired") for record in tested}
    how = "and unpaired" if kinds == {"unpaired"} else "on the same images"
    over = "in this table"
    if len(kinds) > 1:
        over = "over the paired tests of this table. Unpaired tests are corrected apart"
    return [
        f"Tests are {to} {how}: p, and after the semicolon p by Holm's correction {over}. They are about these trained "
        f"models on other images, and not about other training runs."
    ]


def attention_note(table: TableFile) -> list[str]:
    """Return a note with the further fields of the kinds of attention, which column headings do not show."""
    kinds = {}
    for name, fields in table.attention.items():
        others = {k.removeprefix("model.vit."): value for k, value in fields.items() if k != "model.vit.attention"}
        others |= others.pop("feature_options", None) or {}
        kinds[name] = ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in others.items())
    if not any(kinds.values()):
        return []
    texts = (f"{name} has {kind or 'what the recipe has'}" for name, kind in kinds.items())
    return [f"Attention: {'; '.join(texts)}."]


def missing_cells(table: TableFile, budget_name: str, records: Sequence[Row], command: str) -> list[str]:
    """Return notes with the numbers of cells that were not run, printed or not, and the commands for them."""
    lines = set(shown_lines(records))
    counts: Counter[tuple[str, str, bool]] = Counter()
    for record in records:
        if record["state"] == NOT_RUN:
            how, shown = command_for(table, budget_name, record, command), (record["data"], record["row"]) in lines
            if shown or how != NO_BUDGET:
                counts[record["why"], how, shown] += 1
    texts = []
    for (why, how, shown), count in counts.items():
        cells = f"{count} {'cell' if count == 1 else 'cells'}"
        if shown:
            texts.append(f"{cells} not run{f' ({why})' if why else ''}: {how}")
        else:
            texts.append(f"{cells} of models outside this budget, which have no published figure, are not shown: {how}")
    return texts


def command_for(table: TableFile, budget_name: str, record: Row, command: str) -> str:
    """Return the command for a missing cell, with this budget or the first that has its set and row."""
    if record["why"] != OUTSIDE:
        return f"{command} --budget {budget_name}"
    names = [name for name, budget in table.budgets.items() if budget.rows is None or record["row"] in budget.rows]
    for data in (record["data"], record["stands for"]):
        for name in names:
            if data in table.budgets[name].sets(table):
                return f"{command} --budget {name}"
    return NO_BUDGET
