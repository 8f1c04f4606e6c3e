"""Cells and tables as Markdown and LaTeX: booktabs, whole rows, and escaped characters, of every command."""

from __future__ import annotations

import pytest

from eval.cli import main
from eval.evaluations import EVALUATIONS
from eval.plotting.options import for_display
from eval.redraw import read_results, table_of
from eval.report import write_tables
from eval.tables import latex_cell, latex_table, markdown_cell
from experiments.figures import ROOT, options_of, read_figures
from tests.helpers.latex import check_latex, check_row

FIGURES = {str(options_of(name, fields).files[0]): name for name, fields in read_figures().items()}
PAPERS = sorted((ROOT / "papers").glob("*/*.tex"))


@pytest.mark.parametrize("file", FIGURES, ids=FIGURES.values())
def test_tables_of_evaluations(file, tmp_path):
    """As `eval NAME --table latex` and `eval plot --table latex` write them, with both kinds of intervals."""
    options = options_of(FIGURES[file], read_figures()[FIGURES[file]])
    name, rows = read_results(options.files[0])
    shown = EVALUATIONS[name].load_report()
    lines = shown.summary(for_display(rows, shown.names, options))
    for intervals in ("brackets", "pm"):
        (path,) = write_tables([lines], tmp_path / "table.csv", ["latex"], intervals)
        assert check_latex(path.read_text()) == 1


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tables_of_papers(path):
    assert check_latex(path.read_text()) >= 1
    assert table_of(path.with_suffix(".csv")).name == path.parent.name


def test_the_command_line(tmp_path):
    file = str(ROOT / "arrow" / "demo" / "resolution.csv")
    main(
        ["plot", file, "--table", "latex", "--intervals", "pm", "--out", str(tmp_path), "--labels", "softmax=A_1 & {B}"]
    )
    text = (tmp_path / "resolution.tex").read_text()
    assert check_latex(text) == 1
    assert r"A\_1 \& \{B\} & " in text
    assert "$95.8^{+1.4}_{-2.1}$" in text


def test_every_character_can_be_set():
    rows = [{"a_b": "[50 %] {x} & y_1 ~ ^ < > \\ # $", "c": 1.5e-14}, {"a_b": "* of\ntwo lines", "c": "-2e+05"}]
    text = latex_table(rows)
    assert check_latex(text) == 1
    assert latex_cell("1.5e-14") == r"$1.5 \cdot 10^{-14}$"
    assert [latex_cell("0.0e+00"), latex_cell("1.5e+00")] == ["$0.0$", "$1.5$"]
    assert r"\begin{tabular}{lr}" in text


def test_math_in_labels(tmp_path, capsys):
    """Between two $ it is as matplotlib draws it, and prices are text."""
    assert latex_cell(r"Ours, $\alpha_4 = 2$ & more") == r"Ours, $\alpha_4 = 2$ \& more"
    assert latex_cell("from $5 to $6, 100 %") == r"from \$5 to \$6, 100 \%"
    file = str(ROOT / "arrow" / "demo" / "resolution.csv")
    main(["plot", file, "--table", "latex", "--out", str(tmp_path), "--labels", r"softmax=$\phi^2$ & x_1"])
    assert r"$\phi^2$ \& x\_1 & " in (tmp_path / "resolution.tex").read_text()
    with pytest.raises(SystemExit, match="2"):
        main(["plot", file, "--out", str(tmp_path), "--labels", r"softmax=$\phii$"])
    assert r"has no math that can be drawn between its two $ (" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cost", "plateau", "estimator", "locality", "recipes", "compare"])
def test_headings_have_units(name):
    """CSV files keep the names of their columns."""
    files = [path for path in sorted(ROOT.rglob(f"{name}.csv")) if read_results(path)[0] == name]
    shown = EVALUATIONS[name].load_report()
    headings = " | ".join(shown.summary(read_results(files[0])[1])[0])
    unit = {
        "cost": "pixels | tokens",
        "plateau": "worst size in %",
        "estimator": "pixels | ",
        "locality": "attention radius (patches)",
        "recipes": "plain ViT (images/s)",
        "compare": " px in points",
    }
    assert unit[name] in headings


@pytest.mark.parametrize(
    "row", ["a & b", r"a \\", r"a_1 & b \\", r"[a] & b \\", r"{a & b \\", r"$a & b \\", r"\foo & b \\"]
)
def test_the_check_can_fail(row):
    with pytest.raises(AssertionError):
        check_row(row, 2)


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
