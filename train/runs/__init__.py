"""The folder of a run: its place, its records, and its loggers."""
