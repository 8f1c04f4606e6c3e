"""Models of several labels or of numbers: compared, changed one thing at a time, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval.accuracy.compare_report import comparison_figure, summary
from eval.accuracy.reports import plot_ablation
from eval.cli import main
from eval.redraw import read_results
from tests.helpers.checkpoints import CONFIG, save
from tests.helpers.runs import write_log
from tests.helpers.targets import add_sources
from train.data.module import ImageData
from train.data.sizes import Size
from train.measures import MEASURES

SMALL = replace(CONFIG, image_size=16, patch_size=8, num_classes=2)


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    add_sources(monkeypatch)


def untrained(run, source, **changes) -> str:
    data = ImageData(source, size=[16, 16], workers=0, batch_size=8)
    return str(save(run, replace(SMALL, **changes), data))


def rows_of(path) -> list:
    return read_results(path)[1]


@pytest.mark.parametrize("source", ["bands", "places"])
def test_they_are_compared(source, tmp_path, capsys):
    kind = {"bands": "labels", "places": "numbers"}[source]
    main_name = MEASURES[kind][0].name
    runs = [untrained(tmp_path / f"one-seed{seed}", source, seed=seed) for seed in range(2)]
    runs += [untrained(tmp_path / f"two-seed{seed}", source, seed=seed, attention="softmax") for seed in range(2)]
    write_log(tmp_path / "one-seed0", {f"val/{main_name}": {60: 0.5, 120: 0.75}})
    results = tmp_path / "results"
    main(["compare", *runs, "--resolutions", "16", "24", "--reference", "two", "--target", "0.7"])
    shown = capsys.readouterr().out
    main(["resolution", *runs, "--resolutions", "16", "24"])
    rows, alone = rows_of(results / "compare.csv"), rows_of(results / "resolution.csv")
    for row, measured in zip(rows, alone, strict=True):
        assert {name: row[name] for name in measured} == measured
    prefixes = {measure.name: f"{measure.name} " * (measure.name != main_name) for measure in MEASURES[kind]}
    for size in ("16", "24"):
        at = [row for row in rows if str(row["resolution"]) == size]
        for measure in MEASURES[kind]:
            ours, theirs = ([row for row in at if row["model"].startswith(name)] for name in ("one", "two"))
            expected = sum(a[measure.name] - b[measure.name] for a, b in zip(ours, theirs, strict=True)) / 2
            found = [ours[0][f"{prefixes[measure.name]}difference{end}"] for end in ("", " low", " high")]
            assert found[0] == pytest.approx(expected, abs=2e-6)
            assert found[1] <= found[0] <= found[2]
            assert all(row[f"{prefixes[measure.name]}difference"] == 0 for row in theirs)
    first = next(row for row in rows if row["model"] == "one-seed0")
    assert (first["validations"], first["seconds to target"]) == ("61:0.5 121:0.75", 120)
    assert f"minutes to {MEASURES[kind][0].title} 0.7 (val)" in shown
    assert "majority baseline" not in shown
    assert ("mean absolute error (lower is better)" in shown) == (kind == "numbers")
    assert "in points" not in shown
    main(["plot", str(results / "compare.csv"), str(results / "resolution.csv")])  # without models


def test_an_ablation_of_numbers_is_seed_by_seed(tmp_path, capsys):
    runs = [untrained(tmp_path / f"recipe-seed{seed}", "places", seed=seed) for seed in range(2)]
    runs += [untrained(tmp_path / f"other-seed{seed}", "places", seed=seed, depth=2) for seed in range(2)]
    main(["ablation", *runs, "--resolutions", "16"])
    by_model = {row["model"]: row for row in rows_of(tmp_path / "results" / "ablation.csv")}
    for seed in range(2):
        base, row = by_model[f"recipe-seed{seed}"], by_model[f"other-seed{seed}"]
        assert row["difference"] == pytest.approx(row["r2"] - base["r2"], abs=2e-6)
        assert row["mae difference"] == pytest.approx(row["mae"] - base["mae"], abs=2e-6)
        assert base["difference"] == base["mae difference"] == 0
    shown = capsys.readouterr().out
    assert "| model (test) " in shown
    lines = [[cell.strip() for cell in line.split("|")[1:3]] for line in shown.splitlines() if "16" not in line]
    error = "mean absolute error (lower is better)"
    assert lines[1:5] == [["recipe", "r2"], ["other - recipe", "r2"], ["recipe", error], ["other - recipe", error]]
    r2, mae = plot_ablation([*by_model.values()]).axes
    assert (r2.get_xlabel(), mae.get_xlabel().replace("\n", " ")) == ("r2", error)


def test_their_cost_and_their_attention(tmp_path):
    run = untrained(tmp_path / "one", "places")
    main(["estimator", run, "--resolutions", "16", "--images", "4"])
    main(["cost", run, "--resolutions", "16", "--rounds", "5"])
    (row,) = rows_of(tmp_path / "one" / "results" / "cost.csv")
    assert {"r2", "low", "high", "mae", "mae low", "mae high", "ms", "images"} <= row.keys()


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("bands", ["compare", "--target", "80"], "--target is an average precision, above 0 and at most 1, not 80."),
        ("places", ["compare", "--target", "2"], "--target is an r2, at most 1, not 2."),
        ("places", ["compare", "--views", "2x1"], "--views 2x1: the mean over views is of classes. Leave it out."),
        ("places", ["knn"], "python -m eval resolution, compare, ablation and cost."),
        ("bands", ["confusion"], "python -m eval resolution, compare, ablation and cost."),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused(source, more, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main([more[0], untrained(tmp_path / "one", source), *more[1:]])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_models_of_other_answers_are_not_compared(tmp_path, capsys):
    runs = [untrained(tmp_path / source, source) for source in ("bands", "places")]
    with pytest.raises(SystemExit):
        main(["compare", *runs])
    assert "bands answers labels, places answers numbers" in capsys.readouterr().err


def compared(models: dict[str, tuple[float, float]]) -> list:
    """Return rows of `eval compare` of numbers, by r2 and mean absolute error."""
    shared = {"resolution": Size.of(32), "trained at": Size.of(32), "images": 9, "split": "test", "reference": "a"}
    shared |= {"parameters (M)": 1, "GMACs": 2, "peak MiB": 3, "training images/s": 4.0, "target": ""}
    return [
        {
            "model": name,
            **{"r2": r2, "low": r2 - 0.1, "high": r2 + 0.1, "difference": 0.5 - r2},
            **{"mae": mae, "mae low": mae - 0.01, "mae high": mae + 0.01, "mae difference": mae - 0.3},
            **{f"{prefix}difference {end}": 1.0 for prefix in ("", "mae ") for end in ("low", "high")},
            **shared,
            "validations": "1:-0.25 2:0.5 3:0.75",
        }
        for name, (r2, mae) in models.items()
    ]


def test_each_measure_has_its_lines_and_its_panel():
    rows = compared({"a": (0.5, 0.3), "b": (0.4, 0.35)})
    lines = summary(rows)
    assert [(line["model (test)"], line["measure"]) for line in lines[1:3]] == [
        ("b", "r2"),
        ("a", "mean absolute error (lower is better)"),
    ]
    assert lines[3]["32 px"] == "0.350 (0.340-0.360)"
    assert lines[3]["difference to a at 32 px"] == "+0.050 (+1.000 to +1.000)"
    assert [line["GMACs at 32 px"] for line in lines] == [2, 2, "", ""]  # a cost is of all measures
    labels = [axis.get_ylabel().replace("\n", " ") for axis in comparison_figure(rows).axes]
    assert labels == ["r2", "mean absolute error (lower is better)", "validation r2"]
    many = compared({f"m{number}": (0.5, 0.3) for number in range(8)})
    assert [axis.get_xlabel().replace("\n", " ") for axis in comparison_figure(many).axes] == labels[:2]
