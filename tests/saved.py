"""The former place of `tests.helpers.saved`."""

from tests.helpers.saved import CONFIG, read, save

__all__ = ["CONFIG", "read", "save"]
