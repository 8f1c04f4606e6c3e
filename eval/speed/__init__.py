"""Evaluations of speed: time, memory and error of attention by the number of tokens."""
