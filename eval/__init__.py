"""Evaluations of trained models and of their parts: `python -m eval NAME ...`.

Each evaluation is one file that answers one question, in the folder of its subject:

- `accuracy/`: what models get right, at which resolution and at what cost;
- `attention/`: what the attention of a model looks like, and what changes when a part of it is changed;
- `encodings/`: what position encodings leave unchanged, which are the same, and what each costs;
- `speed/`: time and memory of attention by the number of tokens.

`cli.py` is the command line with the list of all evaluations; `report.py` writes tables, CSV files and plots.
`statistics.py` computes intervals and means over seeds. `checkpoints.py` loads the models and images to evaluate, and
`models.py` a model alone.

To add an evaluation, write a module with the four functions that `cli.py` describes, and add its line to the list.
"""
