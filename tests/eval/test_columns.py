"""Columns of measures: their names, and rows of one measure out of rows of several."""

from __future__ import annotations

import pytest

from eval.accuracy.reports import summary
from eval.columns import by_measure, columns_of, difference_text, interval_text, measure_of, measures_of
from eval.seeds import few_seeds, mean_over_seeds
from eval.tables import result_line
from train.data.sizes import Size
from train.measures import ACCURACY, AVERAGE_PRECISION, MAE, MEASURES, MIOU, R2

OF_NUMBERS = columns_of(R2, {"r2": 0.5, "low": -0.25, "high": 0.75, "difference": 0.125}) | columns_of(
    MAE, {"mae": 2.0, "low": 1.5, "high": 2.5, "difference": -0.5}
)


@pytest.mark.parametrize("kind", MEASURES)
def test_the_columns_of_a_measure_are_read_as_they_were_written(kind):
    """Also where a model is measured by several: none gets the cells of another."""
    written = {
        measure: {measure.name: 10.0 + i, "low": 20.0 + i, "high": 30.0 + i, "difference": 40.0 + i}
        for i, measure in enumerate(MEASURES[kind])
    }
    row = {"model": "a", "images": 9}
    for measure, values in written.items():
        row |= columns_of(measure, values)
    read = by_measure([row])
    assert {measure: rows[0] for measure, rows in read.items()} == {
        measure: {"model": "a", "images": 9, **values} for measure, values in written.items()
    }
    assert measures_of(row) == list(MEASURES[kind])


def test_names_of_columns():
    assert [*OF_NUMBERS] == ["r2", "low", "high", "difference", "mae", "mae low", "mae high", "mae difference"]
    assert measure_of(OF_NUMBERS) is R2
    assert measure_of({"loss": 1.0}) is ACCURACY
    assert measures_of({"accuracy": 99.0, "mIoU": 50.0}) == [MIOU]  # of pixels, whose accuracy says little


def test_digits_of_a_table_and_three_more_in_a_file():
    assert columns_of(ACCURACY, {"accuracy": 98.123456}) == {"accuracy": 98.1235}
    assert columns_of(AVERAGE_PRECISION, {"low": 0.123456789}) == {"low": 0.123457}
    assert interval_text({"accuracy": 98.16, "low": 97.44, "high": 98.71}) == "98.2 (97.4-98.7)"
    assert interval_text({"average_precision": 0.5, "low": 0.25, "high": 0.75}) == "0.500 (0.250-0.750)"
    assert interval_text(OF_NUMBERS) == "0.500 (-0.250 to 0.750)"
    assert difference_text(MAE, -0.5, -1.0, 0.25) == "-0.500 (-1.000 to +0.250)"
    assert result_line({"model": "a", "resolution": 32, **OF_NUMBERS}) == (
        "a, 32 px: r2 0.500 (-0.250 to 0.750), mae 2.000 (1.500 to 2.500)"
    )


def test_a_mean_over_seeds_stays_in_the_range_of_its_measure():
    """R2 may be negative, an error has no upper end, and neither is a percentage."""
    rows = [{"model": f"a-seed{seed}", "resolution": Size.of(60), **OF_NUMBERS} for seed in range(2)]
    rows[1] = {**rows[1], "r2": 0.9, "mae": 0.5}
    ends = {m.name: (r["low"], r["high"]) for m, of in by_measure(rows).items() for r in mean_over_seeds(of)}
    assert ends["r2"] == (pytest.approx(0.7 - 12.7062 * 0.2), 1.0)
    assert ends["mae"] == (0.0, pytest.approx(1.25 + 12.7062 * 0.75, abs=1e-4))
    assert "Intervals of r2 and mean absolute error over seeds are Student's" in few_seeds(rows)[0]
    r2, mae = summary(rows)
    assert r2["measure"] == "r2"
    assert mae == {
        "model": "a, mean of 2 seeds",
        "measure": "mean absolute error (lower is better)",
        "60 px": "1.250 (0.000-10.780)",
    }


def test_a_difference_that_rounds_to_zero_has_no_minus():
    assert difference_text(R2, -0.0004, -0.0006, 0.0) == "+0.000 (-0.001 to +0.000)"
    assert difference_text(ACCURACY, -0.04, -1.26, 1.26) == "+0.0 (-1.3 to +1.3)"
