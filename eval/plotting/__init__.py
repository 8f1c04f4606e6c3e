"""Figures of evaluations: one style, accuracies over image size, and options that all of them have.

- `style.py`: sizes, and the colours and markers of `train.figure_style`; `new_figure` and `panels` begin a figure;
- `axes.py`: axes of sizes and counts, the legend above the panels, the note below them;
- `accuracy.py`: accuracy or error over image size, as lines or as dots;
- `options.py`: `--format`, `--labels`, `--only`, `--order`, `--title`, `--width`;
- `redraw.py`: a figure drawn again from its CSV file, `python -m eval plot FILE.csv`.
"""
