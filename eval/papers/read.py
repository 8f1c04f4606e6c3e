"""Read the file of a table: its parts as dataclasses, with those of the table that it extends, and checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from eval.papers.check import check_table
from eval.papers.table import Part, TableFile
from performer_string.utils.registry import lookup
from performer_string.utils.validation import check_type
from train.runs.environment import ROOT
from train.utils.yaml_file import read_yaml

PAPERS = ROOT / "experiments" / "papers"
FILE = "table.yaml"
INHERITED = ("source", "differs", "recipe", "imports", "fields", "data", "attention", "rows", "reference", "budgets")

AnyPart = TypeVar("AnyPart", bound=Part)


def build(kind: type[AnyPart], content: Any, where: str, **given: Any) -> AnyPart:
    """Return a part with the parts within it, from the content of a YAML file.

    Args:
        kind: class of the part.
        content: fields of the part by name; those without a value are as if they were not there.
        where: what it is the content of, for errors.
        given: fields that the file does not have.

    Raises:
        ValueError: an unknown field, with the nearest one, or a value of another type.
    """
    check_type(where, content or {}, dict[str, Any])
    known = {name: hint for name, hint in get_type_hints(kind).items() if name not in given}
    values = {}
    for name, value in (content or {}).items():
        hint = lookup(f"field of {where}", str(name), known)
        if value is not None:
            values[name] = build_entries(hint, value, where, name)
    try:
        return kind(**values, **given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def build_entries(hint: Any, value: Any, where: str, name: str) -> Any:
    """Return a field's value, where the entries of mappings and lists of parts are built; arguments as in `build`."""
    origin, members = get_origin(hint), get_args(hint)
    kind = members[-1] if origin in (dict, list) else None
    if isinstance(kind, type) and issubclass(kind, Part):
        check_type(f"{where}: {name}", value, origin[(*members[:-1], Any)])
        if origin is list:
            return [build(kind, each, f"{where}: {name}") for each in value]
        return {str(key): build(kind, each, f"{where}: {key} of {name}") for key, each in value.items()}
    if origin is dict and isinstance(value, dict):
        return {str(key): {} if each is None and get_origin(kind) is dict else each for key, each in value.items()}
    return value


def table_content(path: Path, extended_by: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the fields of a file, with those of `INHERITED` that it lacks from the table it `extends`.

    A table that shares the runs of the table it extends also inherits its budgets, and may add fields to them.

    Raises:
        ValueError: tables that extend each other in a circle.
    """
    files = (*extended_by, path.resolve())
    if path.resolve() in extended_by:
        circle = " -> ".join(each.parent.name for each in files[files.index(path.resolve()) :])
        raise ValueError(f"{path} extends itself: {circle}.")
    content = read_yaml(path)
    base = content.pop("extends", None)
    if base is None:
        return content
    inherited = table_content(lookup(f"table that {path} extends", str(base), files_by_name()), files)
    if content.get("runs") == base:
        own, others = content.get("budgets") or {}, inherited.get("budgets") or {}
        for name, budget in own.items():
            check_type(f"{path}: {name} of budgets", budget or {}, dict[str, Any])
        content["budgets"] = {name: {**others.get(name, {}), **(own.get(name) or {})} for name in {**others, **own}}
    return {**{name: inherited[name] for name in INHERITED if name in inherited}, **content}


def read_table(path: Path) -> TableFile:
    """Return the table in a file.

    Raises:
        FileNotFoundError: a missing file.
        ValueError: an unknown field, or a table that `check_table` rejects.
    """
    content = table_content(path)
    check_type(f"{path}: title", content.get("title"), str)
    name = path.absolute().parent.name if path.name == FILE else path.stem
    table = build(TableFile, content, str(path), path=path, name=name)
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


def stored_budgets(table: TableFile) -> list[str]:
    """Return the budgets of a table of the project whose results are in the repository; none of a user's table."""
    if table.path.absolute().parent != PAPERS / table.name:
        return []
    return [path.stem for path in sorted(table.path.parent.glob("*.csv")) if ".curves" not in path.name]


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
