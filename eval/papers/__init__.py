"""Tables of papers and of this project, reproduced by one command each: `python -m eval table NAME` (`command.py`).

What happens to a table.yaml, in order:

1. `read.py` reads it as a `TableFile` (`table.py` lists all fields), and `check.py` checks it before any training.
2. `plan.py` makes a `Group` (`group.py`) for each set of images, row and kind of attention: one model, in all seeds. It
   finds the images, and says why a group cannot be trained.
3. `training.py` trains the runs of the groups that are missing, as a sweep.
4. `cells.py` makes a cell for each group and column. Its number is that of a measure (`measures.py`) of the group's
   trained models (`results.py`); `operations.py` counts multiplications.
5. `write.py` writes the cells as CSV, `printed.py` prints them as a table with notes, and `figure.py` draws them.

Where a table names an evaluation of `python -m eval`, `evaluation.py` runs that in place of steps 4 and 5.
`eval table --list` is `listing.py`, with times from `estimate.py`. `eval report` is `report.py`, which reads the files
of step 5 and makes a page of all tables (`report_page.py`). `wide_cayley.py` is an encoding that only one table has.
"""
