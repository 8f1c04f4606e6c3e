"""Evaluations of attention: what that of a model looks like, and what a change of it does to the accuracy."""
