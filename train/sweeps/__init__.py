"""Sweeps: their files, and the processes that train their runs."""
