"""Which settings of a run of a sweep are the same ones."""

from __future__ import annotations

import pytest

from train.sweeps.settings import current_settings, other_settings, write_settings

SETTINGS = {"recipe": {"data": {"source": "arrow"}}, "overrides": {}, "arguments": ["--ema", "0.5"], "seed": 0}


@pytest.mark.parametrize("change", ["recipe", "overrides", "arguments"])
def test_watching_the_test_images_is_no_other_setting(tmp_path, change):
    """It changes no weight: a run without is finished, and a begun one goes on."""
    watched = {
        "recipe": {"data": {"source": "arrow", "watch_test": True}},
        "overrides": {"data.watch_test": True},
        "arguments": ["--ema", "0.5", "--data.watch_test", "true"],
    }
    write_settings(tmp_path, SETTINGS)
    assert other_settings(tmp_path, SETTINGS | {"seed": 1}) == {"seed": 0}
    assert other_settings(tmp_path, current_settings(SETTINGS | {change: watched[change]})) == {}
