"""Which settings of a run of a sweep are the same ones."""

from __future__ import annotations

import pytest

from train.sweeps.settings import current_settings, described, other_settings, write_settings

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


def test_settings_of_before_numbers_like_2e_1_were_read(tmp_path):
    now = {"overrides": {"trainer.max_time": 2e-1}, "recipe": None, "arguments": ["--ema", "5e-1"], "seed": 0}
    write_settings(tmp_path, {**now, "overrides": {"trainer.max_time": "2e-1"}})
    assert other_settings(tmp_path, current_settings(now)) == {}


@pytest.mark.parametrize("change", ["recipe", "overrides", "arguments"])
def test_imports_are_no_other_setting(tmp_path, change):
    """They make names known: a run of such a name is of the setting with that name."""
    importing = {
        "recipe": {"data": {"source": "arrow"}, "imports": ["mine"]},
        "overrides": {"imports": ["mine"]},
        "arguments": ["--ema", "0.5", "--imports", "[mine]"],
    }
    write_settings(tmp_path, SETTINGS)
    assert other_settings(tmp_path, current_settings(SETTINGS | {change: importing[change]})) == {}


def test_what_differs_in_a_few_words():
    now = {"recipe": {"model": {"vit": dict.fromkeys("abcde", 1)}}, "overrides": {"x": [1]}, "arguments": [], "seed": 2}
    before = {"recipe": {"model": {"vit": {"a": 1}}}, "overrides": {"x": [1, 2]}, "seed": 0}
    assert described(before, now) == (
        "recipe: model.vit.b not set then, 1 now, model.vit.c not set then, 1 now, model.vit.d not set then, 1 now, "
        "and 1 more; overrides: x [1, 2] then, [1] now; seed: 0 then, 2 now"
    )
