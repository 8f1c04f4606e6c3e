"""What a user should see once: that something slower runs than could be expected."""

from __future__ import annotations

import logging

said: set[str] = set()


def warn_once(log: logging.Logger, kind: str, message: str) -> None:
    """A warning, the first time of its kind in this process."""
    if kind not in said:
        said.add(kind)
        log.warning(message)
