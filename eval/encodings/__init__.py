"""Evaluations of position encodings: invariance under translations, equivalence, and cost."""
