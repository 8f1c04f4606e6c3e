"""Shared utilities of training and evaluation: errors in one line, output, seeds, YAML files, imports by name."""
