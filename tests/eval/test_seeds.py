"""Several seeds of one model as one row, if they were trained alike."""

from __future__ import annotations

import pytest

from eval.accuracy.reports import summary
from eval.report import MAJORITY
from eval.seeds import check_seeds, few_seeds, mean_over_seeds, seed_of, without_seed
from train.data.sizes import Size


def test_names_of_seeds():
    assert (without_seed("linear-seed3"), seed_of("linear-seed3")) == ("linear", 3)
    assert (without_seed("linear"), seed_of("linear")) == ("linear", None)


def make_row(model, accuracy, resolution=60):
    size = Size.of(resolution)
    return {"model": model, "resolution": size, "accuracy": accuracy, "low": 1.0, "high": 2.0, MAJORITY: 44.0}


def test_seeds_of_one_model_are_one_row():
    rows = [make_row("a-seed0", 90.0), make_row("a-seed1", 94.0), make_row("a-seed2", 98.0), make_row("b-seed0", 50.0)]
    line, single, baseline = summary(rows)
    # 4.3027 is the 97.5 % point of Student's t with 2 degrees of freedom, the standard deviation 4
    assert line == {"accuracy in %": "a, mean of 3 seeds", "60 px": f"94.0 ({94 - 4.3027 * 4 / 3**0.5:.1f}-100.0)"}
    assert single == {"accuracy in %": "b-seed0", "60 px": "50.0 (1.0-2.0)"}
    assert baseline == {"accuracy in %": "majority baseline", "60 px": "44.0"}


def test_seeds_that_are_all_alike_have_the_interval_of_one():
    alike = [{**make_row(f"a-seed{i}", 100.0), "low": 99.2, "high": 100.0} for i in range(3)]
    assert summary(alike)[0]["60 px"] == "100.0 (99.2-100.0)"


def test_mean_over_seeds_is_taken_at_each_resolution():
    rows = [make_row("a-seed0", 90.0), make_row("a-seed1", 80.0)]
    rows += [make_row("a-seed0", 70.0, 84), make_row("a-seed1", 50.0, 84)]
    means = mean_over_seeds(rows)
    assert [(row["resolution"], row["accuracy"]) for row in means] == [((60, 60), 85.0), ((84, 84), 60.0)]


def test_seeds_with_other_settings():
    settings = {f"m-seed{seed}": {"seed": seed, "lr": 1e-3, "workers": seed} for seed in (0, 1)}
    check_seeds(settings)
    settings["m-seed1"]["lr"] = 2e-3
    with pytest.raises(ValueError, match="m-seed1 and m-seed0 would pass for seeds of one model, but differ in lr:"):
        check_seeds(settings)


def test_intervals_of_few_seeds_are_explained():
    row = {"resolution": 8, "accuracy": 50.0, "low": 40.0, "high": 60.0}
    seeds = [{**row, "model": f"a-seed{seed}"} for seed in range(2)]
    (line,) = few_seeds(seeds)
    assert "12.7 with 2 seeds" in line  # t of one degree of freedom
    assert few_seeds(seeds[:1]) == []
    assert few_seeds([{**row, "model": f"a-seed{seed}"} for seed in range(5)]) == []
