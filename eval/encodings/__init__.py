"""Evaluations of position encodings: what they leave unchanged, which are the same, and what each costs."""
