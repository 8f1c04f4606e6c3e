"""Redraw a figure from the CSV file of its evaluation, without models or images: `python -m eval plot FILE.csv`.

The first lines of the file name the evaluation. The figure and tables are written beside the file, or to `--out`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.accuracy.confusion_matrix import draw_matrix, is_matrix, read_matrix
from eval.evaluations import EVALUATIONS, Command
from eval.plotting.options import add_figure_arguments, draw, for_display, labels_of
from eval.plotting.style import save_plot
from eval.report import MAJORITY, Row, read_csv
from eval.run import add_options, publish
from performer_string.utils.files import nearest_path
from performer_string.utils.renames import current_name
from train.data.sizes import Size
from train.runs.folder import CURVES, SUMMARY
from train.utils.errors import user_message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eval.papers.table import TableFile

OUT = "folder of the figures and tables (default: beside each file)"
SIZES = ("resolution", "trained at", "fitted at")
TEXTS = {
    *("model", "reference", "run", "method", "attention", "encoding", "map", "name", "part", "level", "quantity"),
    *("losses", "validations"),
    *("class", "taken for", "other", "image", "kind", "query", "answer", "picture"),
}
ANSWER = "class "  # prefix of the columns with a model's answers, the most probable first
NO_FIGURE = {CURVES: "what a run has logged; TensorBoard shows it", SUMMARY: "the runs of a sweep"}
COMMAND = re.compile(r"^# command: python -m eval (\S+).*", re.MULTILINE)
TABLE = re.compile(r"^# command: python -m eval table (.+)", re.MULTILINE)  # a paper's table by `eval table`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval plot`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.csv", help="results of evaluations")
    parser.add_argument("--evaluation", metavar="NAME", help="evaluation of the file, if its header does not say")
    add_figure_arguments(parser)


def check_file(path: Path) -> None:
    """Raise a ValueError unless a path is that of a CSV file, with the one that may be meant."""
    if path.is_file() and path.suffix.lower() == ".csv":
        return
    if not path.exists():
        raise ValueError(f"there is no file {path}.{nearest_path(path)}")
    beside = [*path.glob("*.csv"), *path.glob("results/*.csv")] if path.is_dir() else [path.with_suffix(".csv")]
    drawn = [each for each in beside if each.is_file() and each.name not in NO_FIGURE]
    meant: Any = min(drawn, key=lambda each: (each.stem[-1].isdigit(), each), default="runs/A/results/resolution.csv")
    what = "a folder" if path.is_dir() else "no CSV file"
    raise ValueError(f"{path} is {what}, and figures are drawn from the CSV files of evaluations, such as {meant}.")


def read_results(path: Path) -> tuple[str | None, list[Row]]:
    """Return the evaluation that a CSV file names (None without a name), and its rows with typed values.

    Raises:
        ValueError: a missing file, or one without rows.
    """
    check_file(path)
    header, rows = read_csv(path)
    if not rows:
        raise ValueError(f"{path} has no rows.")
    command = COMMAND.search("\n".join(header))
    typed: list[Row] = [{name: read_cell(name, cell) for name, cell in row.items()} for row in rows]
    if command and MAJORITY in typed[0] and "split" not in typed[0]:
        typed = [{**row, "split": former_split(command[0], command[1])} for row in typed]
    return current_name("evaluation", command[1]) if command else None, typed


def former_split(command: str, evaluation: str) -> str:
    """Return the split of old results without that column, from their command and its default at the time."""
    split = re.search(r"--split (\w+)", command)
    return split[1] if split else "val" if evaluation in ("intervene", "estimator") else "test"


def read_cell(column: str, cell: str) -> Any:
    """Return a cell as a size, a boolean, a number or a string."""
    if column in TEXTS or column.startswith(ANSWER) or cell == "":
        return current_text(column, cell)
    if column in SIZES:
        return Size.of(cell)
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def current_text(column: str, cell: str) -> str:
    """Return the current name for one in old results: the feature map `relu, order 4` is now arc-cosine."""
    if column not in ("map", "name"):
        return cell
    first, comma, rest = cell.partition(",")
    return current_name("feature map", first) + comma + rest


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `eval plot`, for scripts that draw figures with its options."""
    parser = argparse.ArgumentParser(prog="python -m eval plot")
    add_options(parser, EVALUATION)
    return parser


def table_of(path: Path) -> TableFile | None:
    """Return the table of a paper that the first lines of a file name; None for the file of an evaluation.

    Raises:
        FileNotFoundError: the YAML file of a user's table is not there.
        ValueError: an unknown table.
    """
    named = TABLE.search("\n".join(read_csv(path)[0]))
    if named is None:
        return None
    from eval.papers.read import find_table  # this imports torch, which other figures do without

    return find_table(shlex.split(named[1])[0])


def redraw_table(table: TableFile, options: argparse.Namespace) -> Figure | None:
    """Return the figure of a paper's table from its records, and from its training curves where they are beside it.

    Raises:
        ValueError: options that name models, since the table's YAML file names them.
    """
    from eval.papers.figure import draw_table

    if options.only or options.order or options.labels:
        raise ValueError(f"--only, --order and --labels are in the file of the table, {table.path}.")
    path = options.files[0]
    beside = path.with_suffix(".curves.csv")
    records, curves = read_csv(path)[1], read_csv(beside)[1] if beside.is_file() else []
    return draw(partial(draw_table, table, records, curves), options)


def redraw_matrix(options: argparse.Namespace) -> tuple[Figure | None, list[Row], list[str]]:
    """Return the picture of a confusion matrix, its table and no notes; options are those of `redraw`."""
    matrix = read_matrix(options.files[0])
    (label,) = labels_of([matrix.model], options).values()
    return draw(partial(draw_matrix, replace(matrix, model=label)), options), matrix.rows(), []


def redraw(options: argparse.Namespace) -> tuple[Figure | None, list[Row], list[str]]:
    """Return the figure (None where there is nothing to show), table and notes of the first of `options.files`.

    Raises:
        ValueError: a file that no evaluation wrote, or chosen names that it does not contain.
    """
    path = options.files[0]
    if is_matrix(path):
        return redraw_matrix(options)
    written, rows = read_results(path)
    if written == "table" and (table := table_of(path)):
        written = table.evaluation
    name = options.evaluation or written or ""
    if name not in EVALUATIONS:
        raise ValueError(
            f"the first lines of {path} name no evaluation: say which one wrote it with --evaluation, one of "
            f"{', '.join(EVALUATIONS)}."
        )
    report = EVALUATIONS[name].load_report()
    rows = report.place_files(rows, path)
    try:
        shown = for_display(rows, report.names, options)
        return draw(partial(report.plot, shown), options), report.summary(shown), report.notes(shown)
    except KeyError as error:
        raise ValueError(f"{path} lacks the column {error} of `eval {name}`.") from error


def why_skipped(path: Path) -> str | None:
    """Return a description of a CSV file of the project without a figure of its own; None for other files."""
    if path.name.endswith(".table.csv"):
        return "a table; its figure is drawn by the file without `.table`"
    if path.name.endswith(".curves.csv"):
        return "the training curves of a table, which its figure shows"
    header, rows = read_csv(path)
    if path.name in NO_FIGURE and not header:
        return NO_FIGURE[path.name]
    if rows and rows[0].keys() >= {"truth", "answer", "right"}:
        return "the answer to each image; `eval confusion` draws its other files"
    return None


def target_of(path: Path, options: argparse.Namespace) -> Path:
    """Return the path of a file's figure; in `--out`, files of one name have their folders before it (`A-name.csv`)."""
    if options.out is None:
        return path
    folders = [other.absolute().parent for other in options.files if other.name == path.name]
    return Path(options.out, "-".join(path.absolute().relative_to(os.path.commonpath(folders)).parts))


def draw_again(path: Path, options: argparse.Namespace) -> None:
    """Draw the figure of a file, print its table, and write both."""
    target = target_of(path, options)
    options = argparse.Namespace(**{**vars(options), "files": [path]})
    if (paper := table_of(path)) and not paper.evaluation:
        drawn = redraw_table(paper, options)
        nothing = f"{path}: nothing that its figure would show is measured."
        print(*(save_plot(drawn, target, options.format) if drawn else [nothing]), sep="\n")
        return
    figure, lines, notes = redraw(options)
    print("", *publish([lines], notes, figure, target, options), "", sep="\n")


def run_command(options: argparse.Namespace, folder: Path) -> int:
    """Draw each file's figure, print its table, and write both.

    Files of the project that have no figure are skipped, with a line each. Bad files are reported and the rest drawn.

    Returns:
        Exit status: 2 where a file was bad, or no file has a figure.
    """
    bad = drawn = 0
    for path in options.files:
        try:
            check_file(path)
            if reason := why_skipped(path):
                sys.stderr.write(f"skipped {path}: {reason}.\n")
                continue
            draw_again(path, options)
            drawn += 1
        except (ValueError, OSError) as error:
            message = user_message(error)
            if message is None:
                raise
            bad += 1
            sys.stderr.write(f"error: {message if str(path) in message else f'{path}: {message}'}\n")
    if len(options.files) > 1 and (bad or not drawn):
        sys.stderr.write(f"{drawn} of {len(options.files)} files drawn, {bad} of them bad.\n")
    return 2 if bad or not drawn else 0


EVALUATION = Command(__doc__, add_arguments, run_command, OUT, on_cpu=True)
