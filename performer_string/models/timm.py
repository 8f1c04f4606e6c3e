"""The former place of `from_timm`."""

from performer_string.models.convert.from_timm import from_timm as from_timm
