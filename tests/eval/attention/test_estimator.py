"""Statistics of a trained model's attention, against weights that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eval.argument_types import choose_device
from eval.attention.estimator import attention_statistics, evaluate, total_variation
from eval.attention.reports import estimator_summary as summary
from eval.attention.reports import plot_estimator as plot
from eval.cli import main, parse_arguments
from performer_string import build_feature_map, grid_positions
from performer_string.layers.backends import AttentionBackend, LinearBackend, build_attention
from performer_string.layers.inspection import AttentionInputs, inspect_attention
from performer_string.models.vit.patches import blank_patches
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.large_weights import MODELS, model, sparse_images

POSITIONS = grid_positions((3, 4))


def statistics_of(weights: Tensor, blank: Tensor | None = None) -> dict[str, Tensor]:
    """Return statistics of an attention that has these weights [P + N, P + N] in every image and head."""

    class Fixed(AttentionBackend):
        def weights(self, q, k, rotation=None, key_bias=None, key_mask=None):
            return weights[-12:].expand(2, 3, 12, -1)

    q, k = torch.randn(2, 2, 3, len(weights), 4)
    blank = torch.zeros(2, 12, dtype=torch.bool) if blank is None else blank
    return attention_statistics(AttentionInputs(Fixed(), q, k, None), torch.arange(12), POSITIONS, blank)


@pytest.mark.parametrize("prefix", [0, 2])
def test_statistics_of_known_weights(prefix):
    n = 12 + prefix
    blank = torch.arange(12).expand(2, 12) < 3
    uniform = statistics_of(torch.full((n, n), 1 / n), blank)
    assert {value.shape for value in uniform.values()} == {(2, 3)}
    torch.testing.assert_close(uniform["entropy"], torch.full((2, 3), math.log(n)))
    torch.testing.assert_close(uniform["entropy / log N"], torch.ones(2, 3))
    torch.testing.assert_close(uniform["top share"], torch.full((2, 3), 1 / n))
    torch.testing.assert_close(uniform["weight on blanks"], torch.full((2, 3), 3 / n))
    torch.testing.assert_close(uniform["distance"], torch.cdist(POSITIONS, POSITIONS).mean().expand(2, 3))
    itself = statistics_of(torch.eye(n))
    for name, value in {"entropy": 0, "top share": 1, "distance": 0, "weight on blanks": 0}.items():
        torch.testing.assert_close(itself[name], torch.full((2, 3), float(value)), rtol=1e-5, atol=1e-5)
    neighbour = statistics_of(torch.eye(n).roll(1, dims=1)[:, :])  # row i looks at i + 1, in rows of four
    steps = (POSITIONS - POSITIONS.roll(-1, dims=0)).norm(dim=-1)[: 12 - 1]
    if not prefix:
        steps = torch.cat([steps, (POSITIONS[-1] - POSITIONS[0]).norm()[None]])
        torch.testing.assert_close(neighbour["distance"], steps.mean().expand(2, 3))


@pytest.mark.parametrize("kind", ["arc-cosine", "softmax"])
def test_masked_keys_have_no_weight(kind):
    vit, images = model(kind, mask_blank_patches=True), sparse_images(4)
    blank, positions = blank_patches(images, vit.patch), vit.grid_positions((4, 4))
    for inputs in inspect_attention(vit, images):
        measured = attention_statistics(inputs, torch.arange(16), positions, blank)
        assert measured["weight on blanks"].abs().max() == 0
        expected = total_variation(inputs.weights(), inputs.exact_weights())[:, :, vit.num_prefix :].mean(-1)
        torch.testing.assert_close(measured["TV to softmax"], expected, rtol=1e-4, atol=1e-5)


def test_norms_and_their_quantiles():
    k = torch.randn(2, 3, 14, 4)
    backend = build_attention("softmax", head_dim=4, num_heads=3, feature_map="favor+", seed=0, feature_options={})
    blank = torch.arange(12).expand(2, 12) < 3
    measured = attention_statistics(AttentionInputs(backend, 2 * k, k, None), torch.arange(5), POSITIONS, blank)
    norms = k.norm(dim=-1)
    torch.testing.assert_close(measured["q norm"], 2 * norms.mean(-1))
    torch.testing.assert_close(measured["k norm"], norms.mean(-1))
    torch.testing.assert_close(measured["k norm, 50%"], norms.sort(-1).values[..., 6:8].mean(-1))
    torch.testing.assert_close(measured["k norm of blanks"], norms[..., 2:5].mean(-1))
    for name in ("TV to softmax", "TV to expected", "TV expected to softmax"):
        assert measured[name].max() < 1e-6
    top = backend.weights(2 * k, k)[:, :, 2:7].amax(-1).mean(-1)  # the rows of patches, past the prefix
    torch.testing.assert_close(measured["top share"], top)


def test_total_variation():
    one, two = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    assert total_variation(one, two).tolist() == [0.25, 1.0]


def test_another_kernel_is_told_from_the_variance_of_a_draw():
    q, k = torch.randn(2, 4, 8, 12, 6) * 0.5
    blank = torch.zeros(4, 12, dtype=torch.bool)

    def variations(name: str, **options) -> dict[str, float]:
        backend = build_attention("linear", head_dim=6, num_heads=8, feature_map=name, seed=0, feature_options=options)
        values = attention_statistics(AttentionInputs(backend, q, k, None), torch.arange(12), POSITIONS, blank)
        return {key.removeprefix("TV "): float(value.mean()) for key, value in values.items() if "TV" in key}

    few, many = (variations("favor+", num_features=m) for m in (64, 64 * 64))
    assert many["to expected"] == pytest.approx(few["to expected"] / 8, rel=0.35)
    assert max(few["expected to softmax"], many["expected to softmax"]) < 1e-6
    few, many = (variations("arc-cosine", num_features=m, order=2) for m in (64, 64 * 64))
    assert many["to expected"] == pytest.approx(few["to expected"] / 8, rel=0.35)
    assert few["expected to softmax"] > 0.1
    assert many["to softmax"] == pytest.approx(many["expected to softmax"], abs=0.02)
    exact = variations("polynomial", lower=True)
    assert exact["to expected"] < 1e-5
    assert exact["to softmax"] > 1e-3


def test_the_limit_of_an_attention_of_ones_own_is_not_known():
    class Own(LinearBackend):
        def attend(self, q, k, v, context):
            return super().attend(2 * q, k, v, context)

    phi = build_feature_map("favor+", head_dim=6, num_heads=8, num_features=64)
    q, k = torch.randn(2, 4, 8, 12, 6) * 0.5
    blank = torch.zeros(4, 12, dtype=torch.bool)
    for kind in (LinearBackend, Own):
        measured = attention_statistics(AttentionInputs(kind(phi), q, k, None), torch.arange(12), POSITIONS, blank)
        for name in ("TV to expected", "TV expected to softmax"):
            assert measured[name].isnan().all() == (kind is Own)
        assert measured["TV to softmax"].isfinite().all()


@pytest.mark.parametrize("kind", ["softmax", "favor+"])
def test_attention_and_its_limit_have_the_key_bias(kind):
    options = MODELS[kind].get("feature_options", {})
    name = "softmax" if kind == "softmax" else "linear"
    feature_map = "favor+" if kind == "softmax" else kind
    backend = build_attention(name, head_dim=4, num_heads=3, feature_map=feature_map, seed=0, feature_options=options)
    q, k = torch.randn(2, 2, 3, 12, 4)
    probe = AttentionInputs(backend, q, k, None, key_bias=3 * torch.randn(2, 3, 12))
    measured = attention_statistics(probe, torch.arange(12), POSITIONS, torch.zeros(2, 12, dtype=torch.bool))
    assert measured["TV expected to softmax"].max() < 1e-6
    if kind == "softmax":
        assert max(measured["TV to softmax"].max(), measured["TV to expected"].max()) < 1e-6


def test_equal_weights_are_drawn_within_their_panels(tmp_path):
    path = save(tmp_path / "one", replace(CONFIG, depth=2))
    options = parse_arguments(["estimator", "--checkpoint", str(path), "--resolutions", "60", "84", "--images", "4"])
    figure = plot(list(evaluate(options, choose_device("cpu"))))
    panels = {axis.get_title(): axis for axis in figure.axes}
    for title in ("weight on blank patches", "mean distance in patches"):
        (line,) = [line for line in panels[title].lines if line.get_label() == "equal weights"]
        assert 0 <= min(line.get_ydata()) <= max(line.get_ydata()) < panels[title].get_ylim()[1]
    assert "equal weights" in [text.get_text() for text in figure.legends[0].texts]


def test_distances_that_are_zero_have_no_lines(tmp_path):
    """Softmax attention has none, and polynomial features none to their own kernel: the note says so."""
    kinds = {"exact": {"attention": "softmax"}, "own": {"feature_map": "polynomial", "feature_options": {}}}
    paths = [str(save(tmp_path / name, replace(CONFIG, depth=2, **changes))) for name, changes in kinds.items()]

    def panels(*paths: str) -> dict:
        arguments = ["estimator", "--checkpoint", *paths, "--resolutions", "60", "84", "--images", "4"]
        figure = plot(list(evaluate(parse_arguments(arguments), choose_device("cpu"))))
        found = {axis.get_title(): sum(line.get_marker() != "None" for line in axis.lines) for axis in figure.axes}
        return {**found, "note": " ".join(" ".join(text.get_text() for text in figure.texts).split())}

    both = panels(*paths)
    assert (both["norm of keys"], both["TV to softmax"]) == (4, 2)
    assert "TV to the expected kernel" not in both
    assert "TV: total variation, 0 for exact, to the expected kernel 0 for own;" in both["note"]
    assert "TV to softmax" not in panels(paths[0])


def test_estimator_of_checkpoints(tmp_path, capsys):
    one = save(tmp_path / "one", replace(CONFIG, depth=2))
    two = save(tmp_path / "two", replace(CONFIG, attention="softmax"))
    arguments = ["--resolutions", "60", "84", "--images", "6", "--queries", "9"]
    main(["estimator", "--checkpoint", str(one), str(two), *arguments])
    header, rows = read(tmp_path / "results" / "estimator.csv")
    assert "python -m eval estimator" in header[0]
    keys = [(row["model"], row["resolution"], row["layer"], row["head"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * (2 + 1) * 2
    assert {row["images"] for row in rows} == {"6"}
    assert all(float(row["TV to softmax"]) == 0 for row in rows if row["model"] == "two")
    assert all(float(row["TV to expected"]) > 0 for row in rows if row["model"] == "one")
    assert {round(float(row["share of blanks"]), 2) for row in rows if row["resolution"] == "84"} == {0.71}  # 14 of 49
    assert (tmp_path / "results" / "estimator.png").stat().st_size > 5000
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + (2 + 1) * 2
    numbers = [{**row, "TV to softmax": float(row["head"])} for row in rows]
    assert {line["TV to softmax"] for line in summary([{**n, **floats(n)} for n in numbers])} == {"0.5"}
    with pytest.raises(SystemExit):
        main(["estimator", "--checkpoint", str(one), "--resolutions", "60", "--queries", "0"])
    assert "--queries: a number of 1 or more is needed here, not '0'" in capsys.readouterr().err


def floats(row: dict) -> dict:
    return {"head": int(row["head"]), **{k: float(v) for k, v in row.items() if k not in ("model", "head", "split")}}
