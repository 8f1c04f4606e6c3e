"""Tables of evaluations hold the numbers that they held."""

from __future__ import annotations

import pytest

from eval.report import read_csv

from .make_eval import EVALUATIONS, TABLES, evaluate

pytestmark = pytest.mark.slow

Rows = list[dict[str, str]]
# Columns that may be called otherwise now, with the names that they may have.
RENAMED = {"null": ("null", "majority baseline", "majority", "baseline")}
SHARES = ("accuracy", "low", "high")  # in %, of 60 images
IMAGE = 1.8  # what one image more or less makes of them


@pytest.fixture(scope="module", params=EVALUATIONS)
def written(request, tmp_path_factory) -> tuple[str, Rows]:
    """The rows of an evaluation."""
    return request.param, evaluate(request.param, tmp_path_factory.mktemp(request.param))


def number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the columns of a row whose cells are others: as text, or as numbers by more than float32 rounds."""
    wrong = []
    for column, cell in expected.items():
        name = next((name for name in RENAMED.get(column, (column,)) if name in found), column)
        ours, theirs = number(found.get(name, "")), number(cell)
        same = found.get(name) == cell
        if ours is not None and theirs is not None:
            same = abs(ours - theirs) <= 2e-6 + 1e-3 * abs(theirs)
        if not same:
            wrong.append(f"{name}: {found.get(name)!r} in place of {cell!r}")
    return wrong


def close_call(found: dict[str, str], expected: dict[str, str]) -> bool:
    """Return whether nothing but the class of one image, which rounding may decide, makes two rows differ."""
    others = [{key: cell for key, cell in row.items() if key not in SHARES} for row in (found, expected)]
    near = all(abs(float(found[key]) - float(expected[key])) < IMAGE for key in SHARES if key in expected)
    return "accuracy" in expected and near and not differences(*others)


def test_tables_hold_what_they_held(written):
    name, found = written
    expected = read_csv(TABLES / f"{name}.csv")[1]
    assert len(found) == len(expected), f"{name}: {len(found)} rows in place of {len(expected)}"
    pairs = [(a, b, differences(a, b)) for a, b in zip(found, expected, strict=True)]
    others = [(a, b, wrong) for a, b, wrong in pairs if wrong]
    allowed = len(found) // 20 if all(close_call(a, b) for a, b, _ in others) else 0
    lines = [f"{list(b.values())[:4]}: {'; '.join(wrong)}" for _, b, wrong in others]
    assert len(lines) <= allowed, f"{name}: {len(lines)} of {len(pairs)} rows changed:\n" + "\n".join(lines[:20])
