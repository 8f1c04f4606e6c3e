"""Cells and tables of evaluations as Markdown and LaTeX."""

from __future__ import annotations

from eval.report import write_tables
from eval.tables import latex_cell, latex_table, markdown_cell


def test_latex_cells():
    assert latex_cell("+1.2 (-0.3 to +2.7)") == r"$+1.2$ {\footnotesize $[-0.3, +2.7]$}"
    assert latex_cell("50.0 (40.0-60.0)", "pm") == r"$50.0 \pm 10.0$"
    assert latex_cell("50.0 (40.1-60.0)", "pm") == r"$50.0 \pm 9.9$"  # its ends are rounded
    assert latex_cell("100.0 (94.0-100.0)", "pm") == r"$100.0^{+0.0}_{-6.0}$"
    assert latex_cell("a_b at 5 %") == r"a\_b at 5 \%"
    assert r"\begin{tabular}{lr}" in latex_table([{"model": "m", "GMACs": 0.5}])


def test_markdown_cells():
    assert markdown_cell("100.0 (94.0-100.0)") == "100.0 (94.0-100.0)"
    assert markdown_cell("100.0 (94.0-100.0)", "pm") == "100.0 +0.0/-6.0"
    assert markdown_cell("+1.2 (-0.3 to +2.7)", "pm") == "+1.2 ± 1.5"
    assert markdown_cell("a (b)", "pm") == "a (b)"
    assert markdown_cell("a|b") == r"a\|b"  # a class, whose cell would be two


def test_notes_without_a_title_are_comments_in_latex_alone(tmp_path):
    rows, notes = [{"model": "m", "GMACs": 0.5}], ["Intervals are Student's."]
    markdown, latex = write_tables([rows], tmp_path / "a.csv", ["markdown", "latex"], notes=notes)
    assert latex.read_text().startswith("% Intervals are Student's.\n\\begin{tabular}")
    assert notes[0] not in markdown.read_text()
    markdown, latex = write_tables([rows], tmp_path / "a.csv", ["markdown", "latex"], title="Cost", notes=notes)
    assert latex.read_text().startswith("% Cost\n% Intervals are Student's.\n\\begin{tabular}")
    assert markdown.read_text().endswith("\n\n- Intervals are Student's.\n")


def test_unequal_intervals_in_files(tmp_path):
    rows = [{"model": "m", "60 px": "100.0 (94.0-100.0)"}]
    markdown, latex = write_tables([rows], tmp_path / "resolution.csv", ["markdown", "latex"], "pm")
    assert "100.0 +0.0/-6.0 |" in markdown.read_text()
    assert r"m & $100.0^{+0.0}_{-6.0}$ \\" in latex.read_text()
