"""The numbers of pixels without a class."""

from __future__ import annotations

VOID = 255  # their value in the files of masks, as in Pascal VOC
IGNORED = -100  # their label: the default of torch's losses
