"""Seeds of one model: names of the runs, a check that their settings agree, and means over seeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eval.columns import measure_of, measures_of
from eval.report import Row
from eval.statistics import student_interval
from train.measures import ACCURACY

MAY_DIFFER = {"seed", "root", "workers", "download", "resolutions"}  # settings in which seeds of one model may differ
FEW = "With few seeds they are too short: other seeds can differ by more."  # of intervals by the bootstrap


def without_seed(model: str) -> str:
    """Return the name of a run without its seed: `linear` for `linear-seed3`."""
    return re.sub(r"-seed\d+$", "", model)


def seed_of(model: str) -> int | None:
    """Return the seed in the name of a run, 3 for `linear-seed3`; None where there is none."""
    match = re.search(r"-seed(\d+)$", model)
    return int(match[1]) if match else None


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, or that one of the two mappings lacks."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def other_training(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the settings of two trainings that differ, besides those in which seeds of one model may."""
    return [key for key in differing_keys(one, other) if key not in MAY_DIFFER]


def check_seeds(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that runs whose names mark them as seeds of one model were trained with the same settings.

    Args:
        settings: settings of each training, by the name of the run.

    Raises:
        ValueError: settings that differ in keys other than `MAY_DIFFER`.
    """
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for run, run_settings in settings.items():
        other, other_settings = first.setdefault(without_seed(run), (run, run_settings))
        if keys := other_training(run_settings, other_settings):
            raise ValueError(
                f"{run} and {other} would pass for seeds of one model, but differ in {', '.join(keys)}: rename the "
                f"folder of one, or evaluate them one after the other."
            )


def few_seeds(rows: Sequence[Row]) -> list[str]:
    """Return a note beneath a table that explains wide intervals over few seeds; empty where no model has few."""
    seeds = Counter(without_seed(name) for name in {row["model"] for row in rows})
    few = sorted({2, 3}.intersection(seeds.values()))
    if not few:
        return []
    from scipy.stats import t  # slow to import

    named = " and ".join(measure.values for measure in measures_of(rows[0]))
    factors = " and ".join(f"{t.ppf(0.975, n - 1):.1f} with {n} seeds" for n in few)
    return [
        f"Intervals of {named} over seeds are Student's, of as many standard errors of the mean: {factors}. They "
        f"are of training runs, not of images."
    ]


def mean_over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Return one row for the seeds of a model at each resolution, with their mean accuracy and its 95 % interval.

    The interval is Student's over n seeds, mean +- t_(n-1) s / sqrt(n), cut off at 0 and 100 %, or at the ends of
    another measure's range. It is the uncertainty of the training, on these images; with three seeds t is 4.3. A model
    with one seed, or whose seeds are all alike, keeps the interval over its images.

    Args:
        rows: rows with `model`, `resolution` in pixels, and `accuracy` (or the main measure in its place; others are
            left as they are), `low` and `high`.
    """
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((without_seed(row["model"]), row["resolution"]), []).append(row)
    means: list[Row] = []
    measure = measure_of(rows[0]) if rows else ACCURACY
    for (model, _), seeds in groups.items():
        if len(seeds) == 1:
            means.append(seeds[0])
            continue
        mean, low, high = student_interval([row[measure.name] for row in seeds])
        if low == high:  # equal seeds are not more certain than one of them
            low, high = seeds[0]["low"], seeds[0]["high"]
        title = f"{model}, mean of {len(seeds)} seeds"
        interval = {measure.name: mean, "low": max(measure.least, low), "high": min(measure.most, high)}
        means.append({**seeds[0], "model": title, **interval})
    return means
