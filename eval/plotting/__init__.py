"""Figures of evaluations: their common style, accuracy over image size, and common options.

- `style.py`: sizes, and the colours and markers of `train.figure_style`; `new_figure` and `panels` create figures;
- `axes.py`: axes of sizes and counts, the legend above the panels, the note below them;
- `accuracy.py`: accuracy or error over image size, as lines or as dots;
- `contact_sheet.py`: images in a grid, each with a text below it;
- `options.py`: `--format`, `--labels`, `--only`, `--order`, `--title`, `--width`.
"""
