"""Sweeps: their files, and the trainings of one."""
