"""Training of the models of `performer_string`: recipes, data and the training loop, `python -m train`."""
