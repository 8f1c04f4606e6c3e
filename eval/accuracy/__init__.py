"""Evaluations of what models get right: at each resolution, by parts of a recipe, at what cost, and how early."""
