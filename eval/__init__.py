"""Evaluations of trained models and of their parts: `python -m eval NAME ...`.

Each evaluation is one file that answers one question, in the folder of its subject:

- `accuracy/`: accuracy of models, by resolution, class and cost;
- `attention/`: attention maps and statistics of a model, and interventions on it;
- `encodings/`: invariance, equivalence and cost of position encodings;
- `speed/`: time and memory of attention by the number of tokens;
- `papers/`: tables of papers, reproduced beside their published figures.

`cli.py` is the command line, `evaluations.py` the list of all evaluations, and `run.py` runs one. `report.py` writes
CSV files, and with `tables.py` tables. `plotting/` has the style of all figures, and `redraw.py` redraws them.
`checkpoints.py` loads the models and images to evaluate, `models.py` a model without images, and `result_cache.py`
caches results of each image. `statistics.py` has intervals and tests, `seeds.py` averages the runs of one model over
seeds, and `training_log.py` reads the logged metrics of a run.

To add an evaluation, write a module with an `Evaluation`, which `evaluations.py` describes, and add its line
to the list there.
"""
