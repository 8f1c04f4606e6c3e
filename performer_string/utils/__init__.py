"""Helpers without knowledge of attention: registries, checks, caches, types, seeds."""
