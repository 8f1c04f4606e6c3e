"""Attention as pure functions of queries, keys and values [B, H, N, d], with their definitions in `reference`."""
