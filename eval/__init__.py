"""Evaluations of trained models and of their parts: `python -m eval NAME ...`.

Each evaluation is one file that answers one question, in the folder of its subject:

- `accuracy/`: what models get right, at which resolution and at what cost;
- `attention/`: what the attention of a model looks like, and what changes when a part of it is changed;
- `encodings/`: what position encodings leave unchanged, which are the same, and what each costs;
- `speed/`: time and memory of attention by the number of tokens;
- `papers/`: tables of papers, run again beside their published figures.

`cli.py` is the command line, `evaluations.py` the list of all evaluations, and `run.py` runs one. `report.py` writes
CSV files, and with `tables.py` tables. `plotting/` has the style of all figures, and `redraw.py` draws them again.
`checkpoints.py` loads the models and images to evaluate, `models.py` a model alone, and `result_cache.py` keeps what
was measured of each image. `statistics.py` has intervals and tests, `seeds.py` several runs of one model.
`training_log.py` reads what a run has logged.

To add an evaluation, write a module with an `Evaluation`, which `evaluations.py` describes, and add its line
to the list there.
"""
