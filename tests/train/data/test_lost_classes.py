"""A class none of whose images are left to train on is told of."""

from __future__ import annotations

import logging


def test_a_class_that_is_held_out_whole(images, caplog):
    data = images(train={"a": 1, "b": 1})
    data.val_fraction = 0.5
    with caplog.at_level(logging.WARNING):
        lost = "ab"[data.held_out("val", (8, 8))[0][1]]
    assert f"all images of {lost} are held out for validation" in caplog.text


def test_no_warning_where_each_class_is_trained_on(images, caplog):
    with caplog.at_level(logging.WARNING):
        images(train={"a": 8, "b": 8}).held_out("val", (8, 8))
    assert "held out" not in caplog.text
