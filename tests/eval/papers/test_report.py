"""The page of all tables holds everything itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from eval import cli
from eval.papers.listing import Time, keep_times, read_times
from eval.papers.read import find_table
from eval.papers.report import not_run
from eval.papers.report_page import html_table, page, split_text
from eval.report import table

TEXT = """**Two <encodings> (cpu budget: one seed)**

| model   |   accuracy: published | accuracy: softmax   |
|---------|-----------------------|---------------------|
| RoPE    |                 79.61 | 25.0 (6.2-43.8)     |
| a < b   |                       | not run             |

| model   | loss   |
|---------|--------|
| RoPE    | 1.5    |

- Source: somebody.
- 1 cells not run: python -m eval table x --budget cpu
"""


class Tags(HTMLParser):
    """Count what is open, and collect links."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.seen = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_text_is_split_into_tables_and_notes():
    blocks, notes = split_text(TEXT)
    assert blocks[0] == [
        ["model", "accuracy: published", "accuracy: softmax"],
        ["RoPE", "79.61", "25.0 (6.2-43.8)"],
        ["a < b", "", "not run"],
    ]
    assert blocks[1] == [["model", "loss"], ["RoPE", "1.5"]]
    assert notes == ["Source: somebody.", "1 cells not run: python -m eval table x --budget cpu"]
    assert "a &lt; b" in html_table(blocks[0])


def test_a_bar_in_a_cell_begins_no_column():
    """Labels are the user's, and Markdown escapes the bar."""
    rows = [{"model": "|q| = 1", "loss": "1.5"}, {"model": "plain", "loss": ""}]
    blocks, _ = split_text(f"**Title**\n\n{table(rows)}\n")
    assert blocks == [[["model", "loss"], ["|q| = 1", "1.5"], ["plain", ""]]]


def test_page_needs_nothing_from_elsewhere(tmp_path):
    csv = tmp_path / "two" / "cpu.csv"
    csv.parent.mkdir()
    csv.write_text("# command: python -m eval table two\n# device: a <CPU>\n# note: not here\nrow,value\na,1\n")
    csv.with_suffix(".md").write_text(TEXT)
    csv.with_suffix(".png").write_bytes(b"PNG")
    rows = [{"table": "sparse-cayley", "what it trains": "two <epochs>", "command": "sparse-cayley --budget cpu"}]
    text = page([csv], rows, ["a <GPU>"])
    assert "not here" not in text
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"script", "link", "iframe"} & set(tags.seen)
    assert all(link.startswith(("data:image/png;base64,UE5H", "#")) for link in tags.links), tags.links
    assert not re.search(r"url\(|@import|http", text.partition("</style>")[0])
    for expected in (
        "Two &lt;encodings&gt;",
        "a &lt;CPU&gt;",
        "not run",
        "sparse-cayley --budget cpu",
        "two &lt;epochs&gt;",
        "a &lt;GPU&gt;",
    ):
        assert expected in text


def test_every_budget_that_was_not_run_is_listed_with_its_time():
    tables = [find_table(name) for name in ("liere-2d", "liere-flops")]
    times = {("liere-2d", "gpu"): Time("liere-2d", "gpu", 27, 3600, "a CPU")}
    rows = {(row["table"], row["budget"]): row for row in not_run(tables, {("liere-2d", "cpu")}, times)}
    assert {budget for name, budget in rows if name == "liere-2d"} == set(tables[0].budgets) - {"cpu"}
    assert (rows["liere-2d", "gpu"]["time"], rows["liere-2d", "full"]["time"]) == ("1.0 h", "")
    assert rows["liere-2d", "gpu"]["what it trains"] == tables[0].budgets["gpu"].says


def test_times_are_kept_beside_former_ones(tmp_path):
    first, other = Time("a", "gpu", 1, 60, "x"), Time("b", "gpu", 2, 9, "x")
    keep_times(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    keep_times(tmp_path, [first, other])
    keep_times(tmp_path, [newer := Time("a", "gpu", 1, 50, "y")])
    assert read_times(tmp_path) == [newer, other]


def test_command_gathers_what_tables_have_written(tmp_path, capsys):
    for folder, value in (("old", "11.1"), ("new", "22.2")):
        place = tmp_path / folder / "two"
        place.mkdir(parents=True)
        (place / "cpu.csv").write_text("# command: python -m eval table two\n# device: x\nrow,value\na,1\n")
        (place / "cpu.curves.csv").write_text("row\na\n")
        (place / "cpu.md").write_text(TEXT.replace("79.61", value))
    out = tmp_path / "page.html"
    cli.main(["report", str(tmp_path / "old"), str(tmp_path / "new"), "--out", str(out)])
    text = out.read_text()
    assert "22.2" in text
    assert "11.1" not in text, "the later folder comes first"
    assert capsys.readouterr().out.startswith("1 tables; ")


@pytest.mark.parametrize("cell", ["79.61", "25.0 (6.2-43.8)", "-1.2 (-2.5 to 0.1)", "0.03; 0.2", "3.1e-07"])
def test_a_number_and_its_head_are_on_the_right_and_the_model_stays_in_view(cell):
    text = html_table([["model", "x"], ["a", cell], ["b", "not run"]])
    assert f'<td class="number">{cell}</td>' in text
    assert '<th class="number">x</th>' in text
    assert '<th class="key">model</th>' in text
    assert '<td class="missing">not run</td>' in text


@pytest.mark.parametrize("cell", ["", "-", "a", "0.59 with 1 draws; bias 0.07 se"])
def test_a_cell_that_is_no_number_stays_on_the_left(cell):
    assert 'class="number"' not in html_table([["x"], [cell]])
