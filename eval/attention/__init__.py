"""Evaluations of attention: maps and statistics of a model's attention, and interventions on it."""
