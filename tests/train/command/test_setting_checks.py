"""Checks of a command's settings."""

from __future__ import annotations

from argparse import Namespace

import pytest

from train.command.setting_checks import warn_of_intervals


@pytest.mark.parametrize(
    ("within", "every", "warns"), [(0.5, 5, True), (0.5, 1, False), (None, 5, False), (7, None, False)]
)
def test_interval_in_epochs_without_validation(caplog, within, every, warns):
    warn_of_intervals(Namespace(val_check_interval=within, check_val_every_n_epoch=every))
    assert ("val_check_interval 0.5 holds in each 5th epoch alone" in caplog.text) == warns
