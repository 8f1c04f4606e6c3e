"""How far models attend: radii against a plain loop, and the files of the evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from eval import checkpoints
from eval.attention.locality import attention_radius
from eval.attention.locality_report import draw_radii, plot, summary
from eval.cli import main
from performer_string import grid_positions
from tests.helpers.checkpoints import CONFIG, read, save
from train.checkpoint import load_trained
from train.data.module import ImageData
from train.data.moving_arrow import MovingArrowTask
from train.data.sizes import Size

QUICK = ["--resolutions", "60", "84", "--images", "8", "--tokens", "16", "64", "--rounds", "5", "--probes", "2"]


def test_radius_is_its_definition():
    weights, positions = torch.rand(2, 3, 12, 12, dtype=torch.float64), grid_positions((3, 4), dtype=torch.float64)
    weights[1, 2, 5] = 0  # a query that nothing answers to
    for h, mean in enumerate(attention_radius(weights, positions)):
        means = []
        for b in range(2):
            for i in range(12):
                w = weights[b, h, i]
                if w.sum() > 0:
                    means.append(sum(w[j] * (positions[i] - positions[j]).norm() for j in range(12)) / w.sum())
        assert float(mean) == pytest.approx(float(sum(means) / len(means)))


def test_radius_of_known_weights():
    positions = grid_positions((9, 1))
    assert attention_radius(torch.eye(9)[None, None], positions).tolist() == [0.0]
    neighbours = ((positions[:, 0, None] - positions[:, 0]).abs() == 1).float()
    assert attention_radius(neighbours[None, None], positions).tolist() == [1.0]
    assert attention_radius(2.5 * neighbours[None, None], positions).tolist() == [1.0]  # an amplitude does not matter


@pytest.mark.slow
def test_locality_of_checkpoints(tmp_path, capsys):
    focused = {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.5}, "pool": "cls"}
    paths = [save(tmp_path / "plain"), save(tmp_path / "focused", replace(CONFIG, depth=2, **focused))]
    main(["locality", "--checkpoint", *map(str, paths), *QUICK])
    said = capsys.readouterr().out
    header, rows = read(tmp_path / "results" / "locality.csv")
    assert header[0].startswith("# command: python -m eval locality --checkpoint")
    assert (tmp_path / "results" / "locality.png").stat().st_size > 10000

    def some(**wanted):
        return [row for row in rows if all(row[k] == v for k, v in wanted.items())]

    main(["resolution", "--checkpoint", *map(str, paths), *QUICK[:5], "--out", str(tmp_path)])
    accuracies = [(r["model"], r["resolution"], float(r["accuracy"])) for r in read(tmp_path / "resolution.csv")[1]]
    assert [(r["model"], r["resolution"], float(r["value"])) for r in some(part="accuracy")] == accuracies
    for model in ("plain", "focused"):
        assert [r["tokens"] for r in some(model=model, quantity="milliseconds")] == ["16", "64"]
        peaks = [float(r["value"]) for r in some(model=model, quantity="peak MiB")]
        assert 0 < peaks[0] < peaks[1]
    assert not some(model="plain", quantity="sigma")
    heads = [(str(layer), str(head)) for layer in range(2) for head in range(2)]
    for quantity in ("sigma", "amplitude", "attention radius", "effective radius"):
        assert [(r["layer"], r["head"]) for r in some(model="focused", quantity=quantity)] == heads
    assert {float(r["value"]) for r in some(quantity="sigma")} == {1.5}
    assert {float(r["value"]) for r in some(quantity="amplitude")} == {0.5}
    plain = [
        [float(r["value"]) for r in some(model="plain", quantity=f"{k} radius")] for k in ("attention", "effective")
    ]
    assert plain[0] == plain[1]
    for a, e in zip(*[some(model="focused", quantity=f"{k} radius") for k in ("attention", "effective")], strict=True):
        assert float(e["value"]) < float(a["value"])  # lambda brings it in
    # an untrained model attends almost uniformly
    uniform = float(attention_radius(torch.ones(1, 1, 25, 25), grid_positions((5, 5))))
    assert float(some(model="plain", quantity="uniform")[0]["value"]) == pytest.approx(uniform, rel=1e-4)
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in said.splitlines() if row.startswith("|")]
    titles = ["model", "% at 60 px", "% at 84 px", "ms, 64 tokens", "MiB, 64 tokens"]
    titles += [f"{name} (patches)" for name in ("uniform", "attention radius", "effective radius", "sigma")]
    assert table[0] == titles
    assert [row[0] for row in table[2:]] == ["plain", "focused"]
    assert [row[-1] for row in table[2:]] == ["none", "1.5 (1.5-1.5)"]


def test_sigmas_of_each_axis_and_side_are_in_the_table():
    """`exponential-l1` and decays with several sigmas log them by their axes."""
    row = {"model": "m", "resolution": "", "layer": 0, "head": 0, "tokens": ""}
    values = {"uniform": 3.0, "attention radius": 2.0, "effective radius": 1.5, "sigma_0": 2.0, "sigma_1_lower": 4.0}
    rows = [{**row, "part": "radius", "quantity": name, "value": value} for name, value in values.items()]
    rows += [{**row, "part": "cost", "quantity": q, "value": 1.0, "tokens": 16} for q in ("milliseconds", "peak MiB")]
    assert summary(rows)[0]["sigma (patches)"] == "3.0 (2.0-4.0)"
    axis = Figure().subplots()
    draw_radii(axis, rows[:5], {"m": {"marker": "o", "color": "k"}})
    assert list(axis.lines[1].get_ydata()) == [2.0, 4.0]


def test_seeds_of_one_model_are_told_apart_in_the_legend():
    row = {
        "resolution": Size.of(60),
        "layer": "",
        "tokens": 16,
        "low": 40.0,
        "high": 60.0,
        "images": 9,
        "split": "test",
    }
    parts = {"accuracy": ["accuracy in %"], "radius": ["uniform", "effective radius"]}
    parts |= {"cost": ["milliseconds", "peak MiB"]}
    rows = [
        {**row, "part": part, "model": f"a-seed{seed}", "quantity": name, "value": 50.0, "layer": 0}
        for seed in (0, 1)
        for part, names in parts.items()
        for name in names
    ]
    legends = [legend for part in plot(rows).subfigs for legend in part.legends]
    assert [text.get_text() for text in legends[0].texts] == ["a-seed0", "a-seed1", "equal weights"]


def test_measured_radius_is_that_of_weights_by_hand(tmp_path):
    """Prefix tokens are left out."""
    config = replace(CONFIG, locality="exponential", locality_options={"sigma": 0.8}, pool="cls", attention="softmax")
    path = save(tmp_path / "one", config)
    main(["locality", "--checkpoint", str(path), *QUICK])
    row = next(r for r in read(tmp_path / "one" / "results" / "locality.csv")[1] if r["quantity"] == "effective radius")
    trained = load_trained(path)
    vit, held_out = trained.classifier.vit, trained.data.held_out("test", (60, 60))
    images = trained.data.normalise(torch.stack([held_out[i][0] for i in range(2)]))
    calls = []
    vit.blocks[0].attention.backend.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        vit(images)
        (q, k, _), kwargs = calls[0]
        q, k = kwargs["rotation"].rotate(q), kwargs["rotation"].rotate(k)
        weights = (q @ k.mT / 8**0.5).softmax(-1)[:, 0, 1:, 1:]
        distance = torch.cdist(grid_positions((5, 5)), grid_positions((5, 5)))
        weights = weights * (-distance / 0.8).exp()
    expected = ((weights * distance).sum(-1) / weights.sum(-1)).mean()
    assert float(row["value"]) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "100", "200"], "a square grid, like 196, not '200'"),
        (["--tokens", "many"], "a square grid, not 'many'"),
        (["--rounds", "1"], "--rounds: a number of 5 or more is needed here, not '1'"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    path = str(save(tmp_path / "one"))
    with pytest.raises(SystemExit) as stop:
        main(["locality", "--checkpoint", path, *QUICK, *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one" / "results").exists()


def test_a_dense_model_has_its_miou(tmp_path):
    """The accuracy is the mIoU of `eval dense` in one pass."""
    config = replace(CONFIG, image_size=56, patch_size=8, head="dense", num_classes=3)
    paths = [
        save(tmp_path / name, config, ImageData("cells", size=[56, 56], workers=0)) for name in ("a-seed0", "a-seed1")
    ]
    main(
        ["locality", *map(str, paths), "--resolutions", "56", "64", "--images", "3", "--tokens", "16", "--probes", "1"]
    )
    main(["dense", *map(str, paths), "--resolutions", "56", "--images", "3", "--methods", "whole"])
    rows = [row for row in read(tmp_path / "results" / "locality.csv")[1] if row["part"] == "accuracy"]
    assert [(row["quantity"], row["resolution"], row["images"]) for row in rows] == [
        ("mIoU in %", size, "3") for _ in paths for size in ("56", "64")
    ]
    expected = [float(row["mIoU"]) for row in read(tmp_path / "results" / "dense.csv")[1]]
    assert [float(row["value"]) for row in rows if row["resolution"] == "56"] == pytest.approx(expected, rel=1e-4)


VIDEOS = ImageData("moving_arrow", size=[4, 36, 36], moving_arrow=MovingArrowTask(arrows=2, letters="A"))


def test_videos_are_measured_at_their_resolutions(tmp_path):
    path = save(tmp_path / "one", replace(CONFIG, image_size=[4, 36, 36], patch_size=[2, 12, 12]), VIDEOS)
    sizes = ["--resolutions", "4x36x36", "8x48x48"]
    main(["locality", str(path), *sizes, "--images", "4", "--probes", "2"])
    rows = read(tmp_path / "one" / "results" / "locality.csv")[1]
    assert [row["resolution"] for row in rows if row["part"] == "accuracy"] == sizes[1:]
    assert [row["tokens"] for row in rows if row["quantity"] == "milliseconds"] == ["18", "64"]
    uniform = float(attention_radius(torch.ones(1, 1, 18, 18), grid_positions((2, 3, 3))))
    (row,) = (row for row in rows if row["quantity"] == "uniform")
    assert float(row["value"]) == pytest.approx(uniform, rel=1e-4)


def test_square_numbers_of_tokens_are_refused_for_videos(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "measure_images", None)  # before anything is measured
    path = save(tmp_path / "one", replace(CONFIG, image_size=[4, 36, 36], patch_size=[2, 12, 12]), VIDEOS)
    with pytest.raises(SystemExit) as stop:
        main(["locality", str(path), "--images", "4", "--tokens", "64"])
    assert stop.value.code == 2
    assert "--tokens are of square images, and one is a model of videos" in capsys.readouterr().err


def test_heads_of_two_kinds_are_not_in_one_table(tmp_path, capsys):
    dense = replace(CONFIG, image_size=56, patch_size=8, head="dense", num_classes=3)
    paths = [save(tmp_path / "one"), save(tmp_path / "two", dense, ImageData("cells", size=[56, 56], workers=0))]
    with pytest.raises(SystemExit) as stop:
        main(["locality", *map(str, paths), *QUICK])
    assert stop.value.code == 2
    assert "one answers one class, two answers a class for each pixel" in capsys.readouterr().err
