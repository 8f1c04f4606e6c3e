"""The style of figures where class names have characters that no font has."""

from __future__ import annotations

import warnings

import pytest
from matplotlib.figure import Figure

from eval.plotting import style


def test_characters_without_a_font_are_said_once(tmp_path, monkeypatch, capsys):
    """And other warnings of a figure stay."""
    monkeypatch.setattr(style, "fallback_fonts", list)

    def draw() -> None:
        with style.paper_style():
            figure = Figure()
            figure.suptitle("\u964d\u843d\u4f1e \u964d\u843d")
            style.save_figure(figure, tmp_path / "a.png")
            style.save_figure(figure, tmp_path / "b.png")
            warnings.warn("another", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="another"):
        draw()
    assert capsys.readouterr().err.startswith("The figures lack 3 characters, for which no font is installed.")
