"""The stored tables of papers have the published figures and notes of their table files."""

from __future__ import annotations

import pytest

from eval.papers.printed import note_on_attention
from eval.papers.read import FILE, PAPERS, read_table
from eval.report import read_csv

STORED = [csv for csv in sorted(PAPERS.glob("*/*.csv")) if ".curves" not in csv.name]


@pytest.mark.parametrize("csv", STORED, ids=lambda csv: f"{csv.parent.name}-{csv.stem}")
def test_stored_tables_have_the_figures_and_notes_of_their_files(csv):
    table = read_table(csv.parent / FILE)
    _, records = read_csv(csv)
    for record in records if "published" in records[0] else ():
        of = record["stands for"], record["row"], record["column"], record["attention"]
        assert record["published"] == table.published_text(*of), of
    for ending in (".csv", ".md", ".tex"):
        text = csv.with_suffix(ending).read_text()
        for note in (table.differs, table.aside, *note_on_attention(table)) if "published" in records[0] else ():
            assert note in text, (ending, note)
