"""Evaluation from the command line: tables, files, intervals, errors."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eval import focusing, invariance, redundancy
from eval.__main__ import main
from eval.report import table, wilson, write_csv
from eval.resolution import summary
from eval.seeds import over_seeds
from performer_string import ENCODINGS, ViTConfig
from performer_string.encodings import SeparableEncoding
from train.data.module import ImageData
from train.module import ImageClassifier

CONFIG = ViTConfig(
    image_size=60,
    patch_size=12,
    in_channels=1,
    num_classes=4,
    width=16,
    depth=1,
    num_heads=2,
    feature_options={"num_features": 8},
)


def save(run: Path, config: ViTConfig = CONFIG) -> Path:
    """An untrained model's checkpoint, as training would write it."""
    torch.manual_seed(1)
    classifier = ImageClassifier(config, resolutions=["60"])
    data = ImageData("arrow", val_size=32, size=[60, 60], workers=0, batch_size=8)
    path = run / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    content = {"state_dict": classifier.state_dict(), "hyper_parameters": dict(classifier.hparams)}
    torch.save({**content, "ImageData": data.state_dict()}, path)
    return path


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    lines = path.read_text().splitlines()
    header = [line for line in lines if line.startswith("#")]
    return header, list(csv.DictReader(lines[len(header) :]))


def test_several_models_at_several_resolutions(tmp_path, capsys):
    one, two = save(tmp_path / "one"), save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    main(["resolution", "--checkpoint", str(one), str(two), "--resolutions", "60", "84"])
    out = capsys.readouterr().out
    assert "| one " in out
    assert "| null " in out
    assert "44.2" in out
    header, rows = read(tmp_path / "results" / "resolution.csv")
    assert header[0] == f"# command: python -m eval resolution --checkpoint {one} {two} --resolutions 60 84"
    assert "torch" in header[1]
    assert [(row["model"], row["resolution"]) for row in rows] == [(m, r) for m in ("one", "two") for r in ("60", "84")]
    assert all(row["images"] == "32" for row in rows)
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    assert (tmp_path / "results" / "resolution.png").stat().st_size > 5000
    assert not list(tmp_path.rglob("*.part*"))


def test_seeds_of_one_model_are_one_row_with_their_interval():
    def row(model, accuracy, resolution=60):
        return {"model": model, "resolution": resolution, "accuracy": accuracy, "low": 1.0, "high": 2.0, "null": 44.0}

    rows = [row("a-seed0", 90.0), row("a-seed1", 94.0), row("a-seed2", 98.0), row("b-seed0", 50.0)]
    line, single, null = summary(rows)
    # 4.3027 is the 97.5 % point of Student's t with 2 degrees of freedom, the standard deviation 4
    assert line == {"accuracy in %": "a, mean of 3 seeds", "60 px": f"94.0 ({94 - 4.3027 * 4 / 3**0.5:.1f}-100.0)"}
    assert single == {"accuracy in %": "b-seed0", "60 px": "50.0 (1.0-2.0)"}
    assert null["60 px"] == "44.0"
    apart = over_seeds([row("a-seed0", 90.0), row("a-seed1", 80.0), row("a-seed0", 70.0, 84), row("a-seed1", 50.0, 84)])
    assert [(r["resolution"], r["accuracy"]) for r in apart] == [(60, 85.0), (84, 60.0)]


def test_one_model_writes_beside_its_run(tmp_path):
    main(["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--images", "10"])
    assert read(tmp_path / "one" / "results" / "resolution.csv")[1][0]["images"] == "10"


def test_accuracy_is_that_of_the_model(tmp_path):
    """Against a plain loop over the same images."""
    path = save(tmp_path / "one")
    main(["resolution", "--checkpoint", str(path), "--resolutions", "84", "--out", str(tmp_path)])
    from train.checkpoint import load_trained

    trained = load_trained(path)
    data = trained.data.held_out("test", (84, 84))
    right = sum(int(trained.classifier(trained.data.normalise(x[None])).argmax()) == y for x, y in data)
    assert float(read(tmp_path / "resolution.csv")[1][0]["accuracy"]) == pytest.approx(100 * right / 32, abs=0.01)


def test_positions_can_be_interpolated(tmp_path):
    path = save(tmp_path / "one", replace(CONFIG, encoding="rope"))
    from train.checkpoint import load_trained

    model = load_trained(path, positions="interpolate").classifier.vit
    assert model.grid_positions((10, 10)).max() < 5
    main(["resolution", "--checkpoint", str(path), "--resolutions", "120", "--positions", "interpolate"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resolutions", "sixty"], "a resolution is a number of pixels, like 168, not 'sixty'"),
        (["--resolutions", "0"], "not '0'"),
        (["--resolutions", "90"], "90 x 90 pixels is not divisible into patches of 12 x 12"),
        (["--resolutions", "36"], "60 pixels or more, not 36"),
        (["--resolutions", "60", "--positions", "stretch"], "invalid choice: 'stretch'"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["resolution", "--checkpoint", str(save(tmp_path / "one")), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one" / "results").exists()


def test_a_checkpoint_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["resolution", "--checkpoint", str(tmp_path / "no.ckpt"), "--resolutions", "60"])
    assert "there is no checkpoint" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_where_one_was_asked_for(tmp_path, capsys):
    arguments = ["resolution", "--checkpoint", str(save(tmp_path / "one")), "--resolutions", "60", "--device", "cuda"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "torch sees no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize(("right", "total"), [(0, 10), (5, 10), (10, 10), (990, 1000)])
def test_wilson_interval(right, total):
    """Its ends are the shares whose own deviation puts the observed one 1.96 sigma away."""
    low, high = wilson(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(right / total - end) == pytest.approx(1.96 * (end * (1 - end) / total) ** 0.5)
    with pytest.raises(ValueError, match="at least one image"):
        wilson(0, 0)


def test_a_csv_replaces_its_file_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [{"a": 1}], ["first"])
    with pytest.raises(ValueError, match="dict contains fields"):
        write_csv(path, [{"a": 2}, {"a": 3, "b": 4}], ["second"])
    assert read(path) == (["# first"], [{"a": "1"}])


def test_tables():
    result = {"model": "m", "accuracy": 50.0, "low": 40.0, "high": 60.0, "null": 25.0}
    lines = table(summary([{**result, "resolution": size} for size in (60, 84)])).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:4]] == ["accuracy in %", "60 px", "84 px"]
    assert [cell.strip() for cell in lines[2].split("|")[1:4]] == ["m", "50.0 (40.0-60.0)", "50.0 (40.0-60.0)"]
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == ["null", "25.0", "25.0"]


def invariance_rows(tmp_path: Path) -> list[dict[str, str]]:
    main(["invariance", "--out", str(tmp_path), "--head-dim", "12"])
    return read(tmp_path / "invariance.csv")[1]


def test_the_invariance_report_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(invariance, "DRAWS", (1, 16, 64))
    found = invariance_rows(tmp_path)
    assert {row["name"].split()[0] for row in found if row["part"] == "scores"} >= set(ENCODINGS)
    assert not [row for row in found if row["holds"] == "False"]
    assert [row for row in found if row["expected"] == "fails by design"]
    for row in found:
        if row["quantity"] == "bias in standard errors":
            assert float(row["value"]) < 4.5
    spread = {row["quantity"]: float(row["value"]) for row in found if row["name"] == "relu, order 1"}
    assert spread["64 draws"] == pytest.approx(spread["1 draws"] / 8, rel=0.5)


def test_the_invariance_report_sees_a_broken_encoding(tmp_path, monkeypatch, capsys):
    """A rotation by the square of the position has to be found out."""
    monkeypatch.setattr(invariance, "DRAWS", (1, 4))
    forward = SeparableEncoding.forward
    monkeypatch.setattr(SeparableEncoding, "forward", lambda self, positions: forward(self, positions.square()))
    found = invariance_rows(tmp_path)
    assert [row for row in found if row["name"] == "circulant-string" and row["holds"] == "False"]
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_the_invariance_report_of_a_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(invariance, "DRAWS", (1, 4))
    path = save(tmp_path / "one", replace(CONFIG, attention="softmax", encoding="cayley-string"))
    main(["invariance", "--checkpoint", str(path), "--out", str(tmp_path)])
    models = [row for row in read(tmp_path / "invariance.csv")[1] if row["part"] == "models"]
    assert [(row["name"], row["holds"]) for row in models] == [(str(path), "True")]


def test_the_invariance_report_names_a_bad_width(capsys):
    with pytest.raises(SystemExit):
        main(["invariance", "--head-dim", "16"])
    assert "divisible by 12, for blocks of 2, 3 and 4, not 16" in capsys.readouterr().err


def test_the_redundancy_report_finds_what_is_the_same(tmp_path, monkeypatch):
    """What the mathematics says has to come out of the fit, and what is different must not."""
    kept = ["rope", "rope-mixed", "cayley-string", "cayley-string, block-diagonal", "circulant-string, block 4"]
    kept += ["reflection-string", "pate-so3", "pate-so4"]
    monkeypatch.setattr(redundancy, "FAMILIES", {name: redundancy.FAMILIES[name] for name in kept})
    main(["redundancy", "--out", str(tmp_path)])
    covers = {(row["fitted"], row["target"]): row["covers"] == "True" for row in read(tmp_path / "redundancy.csv")[1]}
    full = ["rope-mixed", "cayley-string", "cayley-string, block-diagonal", "reflection-string"]
    assert all(covers[fitted, target] for fitted in full for target in kept)
    assert [target for target in kept if covers["rope", target]] == ["rope"]
    assert not any(covers[fitted, "rope-mixed"] for fitted in ("circulant-string, block 4", "pate-so3", "pate-so4"))
    assert covers["pate-so3", "circulant-string, block 4"]  # more planes than the target needs
    assert covers["rope-mixed, Cayley after it", "rope-mixed"]


def test_the_latency_report_counts_parameters_and_names_what_it_leaves_out(tmp_path, capsys):
    small = ["--variant", "micro", "--image-size", "8", "--patch-size", "4", "--features", "8", "--batch-size", "1"]
    encodings = ["rope-mixed", "cayley-string", "circulant-string", "liere"]
    main(["latency", *small, "--rounds", "5", "--encodings", *encodings, "--out", str(tmp_path)])
    found = {row["encoding"]: row for row in read(tmp_path / "latency.csv")[1]}
    # 4 layers of 4 heads of 12: 12 frequencies a head, 66 entries of S, 10 coefficients, 2 x 66 entries of A
    expected = {"rope": 0, "rope-mixed": 192, "cayley-string": 192 + 1056, "circulant-string": 160, "liere": 2112}
    assert {name: int(row["of the encoding"]) for name, row in found.items()} == expected
    assert float(found["rope"]["to rope"]) == 1
    capsys.readouterr()
    main(
        ["latency", *small[2:], "--variant", "tiny", "--rounds", "5", "--encodings", "pate-so3", "--out", str(tmp_path)]
    )
    assert "pate-so3 is left out: pate-so3 turns blocks of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'"),
        (["--rounds", "3"], "a median needs at least 5 rounds, not 3"),
        (["--attention", "sofmax"], "Did you mean 'softmax'"),
    ],
)
def test_bad_arguments_of_latency(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["latency", *arguments])
    assert message in capsys.readouterr().err


FOCUSING = ["--features", "8", "--head-dim", "4", "--heads", "2", "--rounds", "5", "--sigmas", "1", "8"]


def test_the_focusing_report(tmp_path, capsys):
    main(["focusing", *FOCUSING, "--sides", "12", "24", "--exact-up-to", "144", "--backward", "--out", str(tmp_path)])
    found = read(tmp_path / "focusing.csv")[1]
    names = ["plain", "sigma 1", "sigma 1, exact", "sigma 8", "sigma 8, exact", "plain", "sigma 1", "sigma 8"]
    assert [row["attention"] for row in found] == names
    assert {row["regime"] for row in found if "exact" not in row["attention"]} == {"", "window", "grid"}
    for row in found:
        assert float(row["error"]) <= {"window": 1e-3, "grid": 0.03}.get(row["regime"], 0.0)
        assert float(row["peak MiB"]) > 0
    assert all(float(row["to plain"]) == 1 for row in found if row["attention"] == "plain")
    assert "| sigma 8, exact" in capsys.readouterr().out


def test_no_speed_for_a_focusing_that_is_off(tmp_path, monkeypatch, capsys):
    right = focusing.Locality.numerator
    monkeypatch.setattr(focusing.Locality, "numerator", lambda *args: 1.05 * right(*args))
    with pytest.raises(SystemExit):
        main(["focusing", *FOCUSING, "--sides", "12", "--out", str(tmp_path)])
    assert "above its bound of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_exponent_of_a_power_law():
    assert focusing.exponent([1, 2, 4], [3, 3 * 2**1.5, 3 * 4**1.5]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--locality", "gausian"], "Did you mean 'gaussian'"),
        (["--rounds", "3"], "at least 5 rounds, not 3"),
        (["--sides", "1"], "2 tokens or more along a side, not 1"),
    ],
)
def test_bad_arguments_of_focusing(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["focusing", *arguments])
    assert message in capsys.readouterr().err
