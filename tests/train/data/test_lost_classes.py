"""A class none of whose images are left to train on, or to validate on, is told of."""

from __future__ import annotations

import logging

from train.data.image_checks import warn_of_validation


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


def test_a_class_that_is_not_validated(images, caplog):
    data = images(train={"a": 9, "b": 9, "c": 1})
    held = {"abc"[label] for _, label in data.held_out("val", (8, 8))}
    assert held == {"a", "b"}  # the one image of c is trained on
    warn_of_validation(data)
    assert "validation has 2 images, and none of c: its accuracy" in caplog.text


def test_no_warning_where_each_class_is_validated(images, caplog):
    data = images(train={"a": 40, "b": 40})
    assert len({label for _, label in data.held_out("val", (8, 8))}) == 2
    warn_of_validation(data)
    assert not caplog.text
