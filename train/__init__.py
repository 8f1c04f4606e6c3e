"""`python -m train`: recipes, data and the training loop around `performer_string`."""
