"""The former place of `tests.helpers.checkpoints`."""

from tests.helpers.checkpoints import CONFIG, read, save

__all__ = ["CONFIG", "read", "save"]
