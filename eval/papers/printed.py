"""The printed form of a table: a line for each set and row, with kinds of attention side by side, and notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from eval.papers.cells import MEASURED, NOT_RUN, text_of
from eval.papers.group import NOT_BUILT, OUTSIDE
from eval.papers.table import TableFile
from eval.report import Row, unique
from eval.seeds import FEW
from eval.tables import counted

NO_BUDGET = "no budget of this table has them"
SPLITS = {"test": "test", "val": "validation"}
TIMES = ("ms-per-batch", "ms-per-image")
WIDEST = 9  # most columns of figures side by side; a wider table continues below


def heading(table: TableFile, budget: str, split: str = "test") -> str:
    """Return the title with the budget, and with the split where it is not `test`."""
    says = table.budget(budget).says
    words = [f"{budget} budget{says and f': {says}'}", *([f"{SPLITS[split]} images"] if split != "test" else [])]
    return f"{table.title} ({'; '.join(words)})"


def data_label(table: TableFile, cell: Row) -> str:
    """Return the label of a set, with that of the source's set that it stands for."""
    names = [table.label("data", name) for name in (cell["data"], cell["stands for"])]
    return names[0] if names[0] == names[1] else f"{names[0]}, published: {names[1]}"


def shown_lines(cells: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the set and row of each printed line: those of the budget, and others with published figures."""
    shown = [c for c in cells if c["state"] != NOT_RUN or c["why"] != OUTSIDE or c["published"]]
    return list(dict.fromkeys((c["data"], c["row"]) for c in shown))


def blocks(table: TableFile, cells: Sequence[Row]) -> list[list[dict[str, Any]]]:
    """Return the rows of the table, in blocks that are not too wide."""
    by_place = {(c["data"], c["row"], c["attention"], c["column"]): c for c in cells}
    lines, attentions = shown_lines(cells), unique(cells, "attention")
    first = {line: by_place[(*line, attentions[0], next(iter(table.columns)))] for line in lines}
    names = {"model": [table.label("row", row) for _, row in lines]}
    if len({data for data, _ in lines}) > 1:
        names = {"images": [data_label(table, first[line]) for line in lines], **names}
    parts = [dict(names)]
    for column in table.columns:
        part: dict[str, list[str]] = {}
        prefix = f"{column}: " if len(table.columns) > 1 else ""
        published = {a: [str(by_place[(*line, a, column)]["published"]) for line in lines] for a in attentions}
        alike = all(texts == published[attentions[0]] for texts in published.values())
        for attention in attentions:
            if any(published[attention]):
                part[f"{prefix}published{'' if alike else f' {attention}'}"] = published[attention]
            head = f"{prefix}{attention}" if attention else column
            part[head] = [text_of(table, by_place[(*line, attention, column)]) for line in lines]
        if len(parts[-1]) > len(names) and len(parts[-1]) - len(names) + len(part) > WIDEST:
            parts.append(dict(names))
        parts[-1] |= part
    return [[dict(zip(part, texts, strict=True)) for texts in zip(*part.values(), strict=True)] for part in parts]


def notes(
    table: TableFile, budget: str, cells: Sequence[Row], command: str, device: str, split: str = "test"
) -> list[str]:
    """Return the notes below a table: differences to the source, intervals, and missing cells with their command.

    `command` makes the table, without its budget, and `device` is that on which it was measured.
    """
    lines = [f"Source: {table.source}."] if table.source else []
    if any(cell["published"] for cell in cells):
        places = dict.fromkeys(block.place for block in table.published)
        lines.append(f"Published figures: {', '.join(places)}.")
    lines += [f"What differs: {table.differs}"] if table.differs else []
    lines += note_on_attention(table)
    lines += [f"In the source: {table.aside}"] if table.aside else []
    lines += note_on_intervals(table, budget, cells, split)
    lines += note_on_tests(table, cells)
    of_time = {name for name, spec in table.columns.items() if spec["measure"] in TIMES}
    if timed := unique((c for c in cells if c["column"] in of_time and c["value"] != ""), "column"):
        lines.append(f"{', '.join(timed)}: inference, measured on {device}. Training runs may have had another device.")
    lines += note_on_missing(table, budget, cells, command)
    not_built: dict[str, dict[str, None]] = {}
    for cell in cells:
        if cell["state"] == NOT_BUILT:
            not_built.setdefault(cell["why"], {})[table.label("row", cell["row"])] = None
    return lines + [f"{', '.join(labels)}: {why}." for why, labels in not_built.items()]


def note_on_attention(table: TableFile) -> list[str]:
    """Return a note with the further fields of the kinds of attention, which column headings do not show."""
    kinds = {}
    for name, fields in table.attention.items():
        others = {k.removeprefix("model.vit."): value for k, value in fields.items() if k != "model.vit.attention"}
        others |= others.pop("feature_options", None) or {}
        kinds[name] = ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in others.items())
    texts = [f"{name} has {kind or 'what the recipe has'}" for name, kind in kinds.items()]
    return [f"Attention: {'; '.join(texts)}."] if any(kinds.values()) else []


def note_on_intervals(table: TableFile, budget: str, cells: Sequence[Row], split: str) -> list[str]:
    """Return a note on what the intervals are over, where a column has intervals of the bootstrap."""
    seeds = max((int(c["seeds"]) for c in cells if c["state"] == MEASURED), default=0)
    measures = {spec["measure"] for spec in table.columns.values()}
    if not seeds or not measures & {"accuracy", "loss", "relative-drop", "difference"}:
        return []
    images = max((int(c["images"]) for c in cells if c["images"] != ""), default=0)
    views = table.budget(budget).views
    what = "images" if views == "1x1" else f"videos, each by the mean of {views} views"
    over = f" and {seeds} seeds. {FEW}" if seeds > 1 else "; one seed, so nothing on the spread of training runs."
    return [f"Intervals: 95 %, bootstrap (B = 1000) over {images} {SPLITS[split]} {what}{over}"]


def note_on_tests(table: TableFile, cells: Sequence[Row]) -> list[str]:
    """Return a note on the tests of a table, with the rows that have another reference."""
    tested = [cell for cell in cells if cell["holm"] != ""]
    if not tested:
        return []
    by_reference: dict[str, list[str]] = {}
    for row in map(str, unique(tested, "row")):
        by_reference.setdefault(table.rows[row].reference or table.reference, []).append(table.label("row", row))
    texts = [f"to {table.label('row', table.reference)}"] if by_reference.pop(table.reference, None) else []
    for name, labels in by_reference.items():
        quoted = ", ".join(f'"{label}"' for label in labels)
        texts.append(f'of {quoted} to "{table.label("row", name)}"')
    to = "; ".join(texts) + ("," if by_reference else "")
    kinds = {table.columns.get(str(cell["column"]), {}).get("test", "paired") for cell in tested}
    how = "and unpaired" if kinds == {"unpaired"} else "on the same images"
    over = "in this table"
    if len(kinds) > 1:
        over = "over the paired tests of this table. Unpaired tests are corrected apart"
    return [
        f"Tests are {to} {how}: p, and after the semicolon p by Holm's correction {over}. They are about these trained "
        f"models on other images, and not about other training runs."
    ]


def note_on_missing(table: TableFile, budget: str, cells: Sequence[Row], command: str) -> list[str]:
    """Return notes with the numbers of cells that were not run, printed or not, and the commands for them."""
    lines = set(shown_lines(cells))
    counts: Counter[tuple[str, str, bool]] = Counter()
    for cell in cells:
        if cell["state"] == NOT_RUN:
            budget_of = budget if cell["why"] != OUTSIDE else other_budget(table, cell)
            how, shown = f"{command} --budget {budget_of}", (cell["data"], cell["row"]) in lines
            if shown or budget_of:
                counts[cell["why"], how if budget_of else NO_BUDGET, shown] += 1
    texts = []
    for (why, how, shown), count in counts.items():
        number = counted(count, "cell")
        if shown:
            texts.append(f"{number} not run{f' ({why})' if why else ''}: {how}")
        else:
            texts.append(
                f"{number} of models outside this budget, which have no published figure, are not shown: {how}"
            )
    return texts


def other_budget(table: TableFile, cell: Row) -> str:
    """Return the first budget that has the set and row of a cell; empty where none has them."""
    known = {name: budget for name, budget in table.budgets.items() if cell["row"] in (budget.rows or table.rows)}
    sets = (cell["data"], cell["stands for"])
    return next((name for data in sets for name, budget in known.items() if data in budget.sets(table)), "")
