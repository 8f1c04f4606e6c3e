"""Several seeds of one model as one: the mean of their accuracies, and how sure it is."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import t

from eval.report import Row


def stem(model: str) -> str:
    """The name of a run without its seed: `linear-seed3` is `linear`."""
    return re.sub(r"-seed\d+$", "", model)


def seed_of(model: str) -> int | None:
    """The seed in the name of a run: 3 of `linear-seed3`."""
    found = re.search(r"-seed(\d+)$", model)
    return int(found[1]) if found else None


def student(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval, mean +- t_(n-1) s / sqrt(n); of a single value the interval is that value."""
    mean, count = statistics.mean(values), len(values)
    half = t.ppf(0.975, count - 1) * statistics.stdev(values) / count**0.5 if count > 1 else 0.0
    return mean, mean - half, mean + half


OWN = {"seed", "root", "workers", "download", "resolutions"}  # what seeds of one model may differ in


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, or that one of the two lacks."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def check_seeds(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """An error where runs that their names make seeds of one model were trained otherwise than each other."""
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for run, own in settings.items():
        other, others = first.setdefault(stem(run), (run, own))
        differ = [key for key in differing(own, others) if key not in OWN]
        if differ:
            raise ValueError(
                f"{run} and {other} would pass for seeds of one model, but differ in {', '.join(differ)}: rename the "
                f"folder of one, or evaluate them one after the other."
            )


def over_seeds(found: Sequence[Row]) -> list[Row]:
    """Rows of runs that differ by their seed alone as one row a resolution: the mean and its 95 % interval.

    Student's, mean +- t_(n-1) s / sqrt(n) over n seeds, cut off at 0 and 100 %: of the training, on these images; with
    three seeds t is 4.3. A model with one seed, or whose seeds are all alike, has the interval over its images.
    """
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        groups.setdefault((stem(row["model"]), row["resolution"]), []).append(row)
    rows = []
    for (model, _), members in groups.items():
        if len(members) == 1:
            rows.append(members[0])
            continue
        mean, low, high = student([row["accuracy"] for row in members])
        if low == high:  # all seeds alike: not more certain than one of them
            low, high = members[0]["low"], members[0]["high"]
        title = f"{model}, mean of {len(members)} seeds"
        rows.append(
            {
                **members[0],
                "model": title,
                "accuracy": mean,
                "low": max(0.0, low),
                "high": min(100.0, high),
            }
        )
    return rows
