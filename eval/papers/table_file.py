"""The file of a table, which defines training runs, measures, published values and budgets.

A table is a YAML file, `experiments/papers/NAME/table.yaml` or one of your own:

    title: Sparse Cayley-STRING, table 1
    source: who published it, where
    shows: what it compares, in one line
    recipe: train/configs/NAME.yaml             # or NAME
    imports: [mine]                             # modules of one's own
    fields: {model.vit.pool: cls}               # of every training
    data:                                       # sets of images; every row is trained on each
      cifar10: {fields: {data.source: cifar10}}
    attention:                                  # columns beside each other
      softmax: {model.vit.attention: softmax}
      linear: {model.vit.attention: linear}
    rows:
      dense: {label: Dense, fields: {model.vit.encoding: cayley-string}}
    columns:
      accuracy (%): {measure: accuracy}         # a name in eval/papers/measures.py, with its options
    published:
      - {place: table 1, data: cifar10, columns: [accuracy (%)], values: {dense: [73.69]}}
    differs: what is not as in the source, in one line
    budgets:
      cpu: {says: "2 epochs", seeds: [0], fields: {trainer.max_epochs: 2}}

With `extends: NAME` it inherits the recipe, data, attention, rows and budgets that it lacks from that table. With
`runs: NAME` the two share their training runs, which must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from eval.papers.table_checks import check_table
from eval.papers.table_spec import Budget, DataSpec, Published, RowSpec, TableFile
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_type
from train.runs.environment import ROOT
from train.utils.yaml_file import read_yaml

PAPERS = ROOT / "experiments" / "papers"
FILE = "table.yaml"
NAMED = ("data", "attention", "rows", "columns", "budgets")  # parts that are mappings from names
INHERITED = ("source", "differs", "recipe", "imports", "fields", "data", "attention", "rows", "reference", "budgets")


def build(kind: type, content: Any, where: str) -> Any:
    """Build a dataclass from a mapping, with errors that name the nearest field."""
    content = {} if content is None else content
    if not isinstance(content, Mapping):
        raise ValueError(f"{where} must hold fields with their values, not {content!r}.")
    content = {key: value for key, value in content.items() if value is not None}  # empty values in YAML
    known = {each.name: None for each in fields(kind)}
    for key in content:
        lookup(f"field of {where}", str(key), known)
    try:
        return kind(**content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def table_content(path: Path, extended_by: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the fields of a file, with those of `INHERITED` that it lacks from the table it `extends`.

    A table that shares the runs of the table it extends also inherits its budgets, and may add fields to them.

    Raises:
        ValueError: tables that extend each other in a circle, or a part that is no mapping from names.
    """
    files = (*extended_by, path.resolve())
    if path.resolve() in extended_by:
        circle = " -> ".join(each.parent.name for each in files[files.index(path.resolve()) :])
        raise ValueError(f"{path} extends itself: {circle}.")
    content = read_yaml(path)
    for group in NAMED:
        check_type(f"{path}: {group}", content.get(group) or {}, dict[str, Any])
    for name, budget in (content.get("budgets") or {}).items():
        check_type(f"{path}: {name} of budgets", budget or {}, dict[str, Any])
    check_type(f"{path}: published", content.get("published") or [], list[Any])
    base = content.pop("extends", None)
    if base is None:
        return content
    known = files_by_name()
    inherited = table_content(lookup(f"table that {path} extends", str(base), known), files)
    if content.get("runs") == base:
        own, others = content.get("budgets") or {}, inherited.get("budgets") or {}
        content["budgets"] = {name: {**others.get(name, {}), **(own.get(name) or {})} for name in {**others, **own}}
    return {**{name: inherited[name] for name in INHERITED if name in inherited}, **content}


def read_table(path: Path) -> TableFile:
    """Return the table in a file.

    Raises:
        FileNotFoundError: a missing file.
        ValueError: an unknown field, or a table that `check_table` rejects.
    """
    content = table_content(path)
    if not isinstance(content.get("title"), str):
        raise ValueError(f"{path}: title must be text, not {content.get('title')!r}.")
    name = path.absolute().parent.name if path.name == FILE else path.stem
    known = {each.name: None for each in fields(TableFile) if each.name not in ("path", "name")}
    for key in content:
        lookup(f"field of {path}", str(key), known)
    parts: dict[str, Any] = {
        group: {str(key): value for key, value in (content.get(group) or {}).items()} for group in NAMED
    }
    for group, kind in (("data", DataSpec), ("rows", RowSpec), ("budgets", Budget)):
        parts[group] = {key: build(kind, value, f"{path}: {key}") for key, value in parts[group].items()}
    parts["attention"] = {key: value or {} for key, value in parts["attention"].items()}
    parts["published"] = [build(Published, block, f"{path}: published") for block in content.get("published") or []]
    table: TableFile = build(TableFile, {**content, **parts, "path": path, "name": name}, str(path))
    check_table(table)
    return table


def files_by_name() -> dict[str, Path]:
    """Return the paths of the project's tables, by name.

    Raises:
        FileNotFoundError: an installation without them.
    """
    if not PAPERS.is_dir():
        raise FileNotFoundError(
            f"the tables of the papers are in the folder experiments/papers of the repository, and there is no "
            f"{PAPERS}: clone the repository, and install it there by `pip install -e '.[train]'`. The path of a file "
            f"of your own works without."
        )
    return {each.parent.name: each for each in sorted(PAPERS.glob(f"*/{FILE}"))}


def all_tables() -> Iterator[TableFile]:
    """Yield the tables of the project, ordered by name."""
    yield from map(read_table, files_by_name().values())


def find_table(name: str) -> TableFile:
    """Return a table by its name in `experiments/papers` or by the path of its file."""
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return read_table(path)
    if path.is_dir() and (path / FILE).is_file():
        return read_table(path / FILE)
    return read_table(lookup("table", name, files_by_name()))
