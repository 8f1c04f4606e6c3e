"""Outputs of the library as they were before its parts were moved and renamed, and what compares with them."""
