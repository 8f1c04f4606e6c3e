"""Tables of experiments/**/README.md: up to date, and no wrong value passes."""

from __future__ import annotations

import re

import pytest

from experiments.tables import BLOCK, ROOT, fill, main

PAGES = sorted(ROOT.rglob("README.md"))
CSV = """# command: python -m eval resolution
model,resolution,accuracy,low,high
linear-seed0,28,90.0,88.0,92.0
linear-seed1,28,92.0,90.0,94.0
softmax-seed0,28,95.0,93.0,97.0
softmax-seed0,56,60.0,58.0,62.0
softmax-seed1,28,95.0,93.0,97.0
softmax-seed1,56,80.0,78.0,82.0
"""
TABLE = """<!-- table
file: made.csv
rows: model
across: resolution
value: accuracy
heading: accuracy in %
{}
-->
<!-- end table -->
"""


def build_lines(folder, table: str, csv: str = CSV) -> list[list[str]]:
    """The cells of a table, its header first."""
    (folder / "made.csv").write_text(csv)
    lines = [line for line in fill(table, folder).splitlines() if line.startswith("|") and "--" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_stored_tables_are_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_pages_are_short_and_say_what_was_asked(page):
    text = page.read_text()
    assert len(text.splitlines()) <= 180
    assert page.parent == ROOT or all(f"\n## {part}\n" in text for part in ("Question", "Answer", "Command"))


FORMER = re.compile(r"train/sweeps/|results/|runs/(?:ablation|demo-ablation|arrow|recipe)/|tied_start|position_frame")


def test_former_names_in_files_are_translated_on_the_first_page():
    headers = "".join(line for csv in ROOT.rglob("*.csv") for line in csv.open() if line.startswith("#"))
    translation = (ROOT / "README.md").read_text().partition("## Names in the files")[2]
    found = set(FORMER.findall(headers))
    assert len(found) > 5
    assert not [name for name in found if f"`{name.rstrip('/')}" not in translation]


def test_every_result_is_on_a_page():
    for path in [*ROOT.rglob("*.csv"), *ROOT.rglob("*.png")]:
        assert any(path.name in page.read_text() for page in PAGES), path


def test_cells_of_seeds(tmp_path):
    header, linear, softmax = build_lines(tmp_path, TABLE.format(""))
    assert header == ["accuracy in %", "28 px", "56 px"]
    assert linear == ["linear", "91.0 (78.3-100.0)", ""]  # Student's interval of two seeds
    assert softmax == ["softmax", "95.0 (93.0-97.0)", "70.0: 60.0 / 80.0"]  # alike; far apart


def test_conditions_and_numbers(tmp_path):
    table = TABLE.format(
        "labels: {one: {model: softmax-seed0}, all: {model: '*'}}\nmany: range\nscale: 0.01\nformat: .2f"
    )
    assert build_lines(tmp_path, table)[1:] == [["one", "0.95", "0.60"], ["all", "0.90 to 0.95", "0.60 to 0.80"]]
    table = TABLE.format("many: list\nformat: '{accuracy:.0f} of {high:.1f}'\nlabels: {one: softmax-seed1}")
    assert build_lines(tmp_path, table)[1:] == [["one", "95 of 97.0", "80 of 82.0"]]


def test_a_name_like_a_comment_and_a_former_column_are_read(tmp_path):
    table = TABLE.format("columns: {56 px: '56'}").replace("value: accuracy", "value: majority baseline")
    csv = "# command: python -m eval resolution\nmodel,resolution,null\n#1,56,44.2\n# é,56,44.3\n"
    assert build_lines(tmp_path, table, csv)[1:] == [["#1", "44.2"], ["# é", "44.3"]]


@pytest.mark.parametrize(
    ("table", "csv", "message"),
    [
        (TABLE.format(""), CSV.replace("92.0,90.0", "many,90.0"), "accuracy is 'many' where a number is needed"),
        (TABLE.format(""), CSV.replace("56,60.0,58.0", "56,60.0"), "has other cells than there are columns"),
        (TABLE.format("labels: {hyperbolic: favor+}"), CSV, "no row of .* matches"),
        (TABLE.format("colour: red"), CSV, "unknown fields colour"),
        (TABLE.format("").replace("value: accuracy", "value: loss"), CSV, "no column 'loss'"),
        (TABLE.format("").replace("made.csv", "other.csv"), CSV, "there is no file"),
        (TABLE.format("").replace("<!-- end table -->", ""), CSV, "needs both its markers"),
        (TABLE.format("").replace("-->\n<!-- end", "--> <!-- end"), CSV, "needs both its markers"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, table, csv, message):
    with pytest.raises(ValueError, match=message):
        build_lines(tmp_path, table, csv)


def test_command_writes_and_checks(tmp_path, capsys):
    (tmp_path / "made.csv").write_text(CSV)
    page = tmp_path / "README.md"
    page.write_text(TABLE.format(""))
    assert main(["--check"], tmp_path) == 1
    assert "make tables" in capsys.readouterr().err
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert re.search(r"\| softmax +\| 95.0", page.read_text())
    (tmp_path / "made.csv").write_text(CSV.replace("95.0", "?"))
    assert main(["--check"], tmp_path) == 1
    assert len(BLOCK.findall(page.read_text())) == 1  # left as it was
