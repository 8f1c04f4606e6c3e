"""The style of figures: panels, lines and fonts."""

from __future__ import annotations

import itertools

from matplotlib.figure import Figure

from eval.plotting import style
from eval.plotting.style import line_styles, panels, paper_style, width_in_inches


def test_width_decides_how_many_panels_stand_beside_each_other():
    with paper_style(width_in_inches("one-column")):
        figure, axes = panels(3, columns=3)
        assert isinstance(figure, Figure)
        assert figure.get_figwidth() == 3.25
        assert len({axis.get_subplotspec().colspan.start for axis in axes}) == 1
    figure, axes = panels(5, columns=3)
    assert len(figure.axes) == len(axes) == 5  # and no empty one


def test_neighbouring_lines_differ_in_grey_too():
    styles = list(line_styles([str(i) for i in range(20)]).values())
    for one, two in itertools.pairwise(styles):
        assert all(one[key] != two[key] for key in ("color", "marker", "linestyle"))


def test_fonts_for_letters_that_the_default_one_lacks(monkeypatch):
    monkeypatch.setattr(style.font_manager, "get_font_names", lambda: ["DejaVu Sans", "Yu Gothic", "PingFang SC"])
    with style.paper_style():
        assert style.matplotlib.rcParams["font.family"] == ["sans-serif", "PingFang SC", "Yu Gothic"]
