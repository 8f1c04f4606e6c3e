"""Warnings that a user sees once."""

from __future__ import annotations

import logging

_warned: set[str] = set()


def warn_once(log: logging.Logger, kind: str, message: str) -> None:
    """Log a warning once per process for each kind."""
    if kind not in _warned:
        _warned.add(kind)
        log.warning(message)
