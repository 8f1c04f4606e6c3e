"""Evaluations of trained models and of their parts: `python -m eval NAME ...`.

Each evaluation is one file that answers one question, in the folder of its subject:

- `accuracy/`: what models get right, at which resolution and at what cost;
- `attention/`: what the attention of a model looks like, and what changes when a part of it is changed;
- `encodings/`: what position encodings leave unchanged, which are the same, and what each costs;
- `speed/`: time and memory of attention by the number of tokens.

`cli.py` has the list of all evaluations and the command line, `report.py` writes tables, CSV files and plots,
`statistics.py` has intervals and means over seeds, and `checkpoints.py` loads the models and images to evaluate.
"""
