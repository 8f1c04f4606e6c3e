"""Models with one thing changed, as differences to the baseline recipe."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from eval import checkpoints
from eval.accuracy import ablation
from eval.accuracy.reports import ABLATION
from eval.accuracy.reports import ablation_summary as summary
from eval.accuracy.reports import plot_ablation as plot
from eval.cli import main
from eval.report import MAJORITY
from tests.helpers.checkpoints import CONFIG, read, save
from train.data.sizes import Size


def test_differences_are_taken_seed_by_seed():
    def row(model, accuracy, difference, resolution=60):
        return {
            "model": model,
            "resolution": Size.of(resolution),
            "accuracy": accuracy,
            "reference": "recipe",
            "difference": difference,
        }

    rows = [row("no-gate-seed0", 80.0, -10.0), row("no-gate-seed1", 98.0, 1.0), row("order-1-seed1", 60.0, -37.0)]
    rows += [row("recipe-seed0", 90.0, 0.0), row("recipe-seed1", 97.0, 0.0)]
    recipe, gate, order = summary(rows)
    # 12.706 is the 97.5 % point of Student's t with 1 degree of freedom
    assert recipe["60 px"] == f"93.5 ({93.5 - 12.7062 * 3.5:.1f} to 100.0)"
    assert gate["60 px"] == f"-4.5 ({-4.5 - 12.7062 * 5.5:.1f} to +{-4.5 + 12.7062 * 5.5:.1f})"
    assert order == {"accuracy in %": "order-1 - recipe", "60 px": "-37.0", "seeds": 1}


@pytest.mark.parametrize("names", [("recipe-seed0", "other-seed0"), ("other-seed0", "recipe-seed0")], ids=str)
def test_differences_are_to_the_reference_in_any_order(names, monkeypatch):
    accuracy = {"recipe-seed0": 90.0, "other-seed0": 70.0}

    def accuracies(models, options, device):
        for name in (model.name for model in models):
            yield {"model": name, "resolution": Size.of(60), "accuracy": accuracy[name]}

    monkeypatch.setattr(checkpoints, "load_models", lambda options, values: [Namespace(name=name) for name in names])
    monkeypatch.setattr(checkpoints, "accuracies", accuracies)
    options = Namespace(reference="recipe")
    differences = {row["model"]: row["difference"] for row in ablation.evaluate(options, torch.device("cpu"))}
    assert differences == {"recipe-seed0": 0.0, "other-seed0": -20.0}


def test_seeds_that_are_all_alike():
    """The reference has the interval over its images then, and a difference none."""
    shared = {"resolution": Size.of(60), "reference": "recipe", MAJORITY: 25.0, "low": 91.0, "high": 99.0}
    rows = [
        {**shared, "model": f"{name}-seed{seed}", "accuracy": accuracy, "difference": accuracy - 96.0}
        for name, accuracy in (("recipe", 96.0), ("other", 94.5))
        for seed in (0, 1)
    ]
    first, second = (line["60 px"] for line in summary(rows))
    assert first == "96.0 (91.0 to 99.0)"
    assert second == "-1.5 (all seeds alike)"


def test_the_line_of_the_reference_is_explained():
    shared = {"resolution": Size.of(60), "reference": "recipe", "images": 50, "split": "test", MAJORITY: 25.0}
    rows = [{**shared, "model": f"recipe-seed{seed}", "accuracy": 70.0 + seed} for seed in (0, 1)]
    rows += [{**row, "model": row["model"].replace("recipe", "other")} for row in rows]
    figure = plot(rows)
    assert 70.5 in [line.get_xdata()[0] for line in figure.axes[0].lines if len({*line.get_xdata()}) == 1]
    assert figure.get_supxlabel().endswith("; grey line: mean of recipe")


def test_ablation_of_checkpoints(tmp_path, capsys):
    paths = []
    for seed in (0, 1):
        paths.append(save(tmp_path / f"order-1-seed{seed}", replace(CONFIG, seed=seed, attention="softmax")))
        paths.append(save(tmp_path / f"recipe-seed{seed}", replace(CONFIG, seed=seed)))
    main(["ablation", "--checkpoint", *map(str, paths), "--resolutions", "60", "84", "--images", "16"])
    out = capsys.readouterr().out
    assert out.index("| recipe ") < out.index("| order-1 ") < out.index("intervals are Student's over these seeds")
    assert "12.7 with 2 seeds" in out
    table = tmp_path / "results" / "ablation.csv"
    main(["plot", str(table), "--table", "latex"])
    assert "% Differences are between equal seeds" in table.with_suffix(".tex").read_text()
    _, rows = read(tmp_path / "results" / "ablation.csv")
    by_model = {(row["model"], row["resolution"]): row for row in rows}
    assert len(by_model) == 8
    for (model, size), row in by_model.items():
        base = by_model[model.replace("order-1", "recipe"), size]
        assert float(row["difference"]) == pytest.approx(float(row["accuracy"]) - float(base["accuracy"]), abs=0.01)
    assert (tmp_path / "results" / "ablation.png").stat().st_size > 5000


def test_differences_of_one_seed_are_said_to_have_no_interval():
    rows = [{"model": f"{name}-seed1", "accuracy": 90.0} for name in ("recipe", "other")]
    assert ABLATION.notes(rows) == ["Differences of one seed have no interval: eval compare has one over the images."]


def test_seed_without_its_reference(tmp_path, capsys):
    paths = [save(tmp_path / "recipe-seed0"), save(tmp_path / "order-1-seed1", replace(CONFIG, seed=1))]
    with pytest.raises(SystemExit):
        main(["ablation", "--checkpoint", *map(str, paths), "--resolutions", "60"])
    assert "no checkpoint of 'recipe' has the seed of order-1-seed1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["ablation", "--checkpoint", *map(str, paths), "--resolutions", "60", "--reference", "other"])
    assert "say with --reference which of order-1, recipe the others differ from" in capsys.readouterr().err
