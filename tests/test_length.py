"""The evaluation of speed by length: it refuses what is wrong, finds the crossover, and leaves out what is too long."""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eval import contestants, length
from eval.__main__ import main
from eval.measure import exponent, in_turn, ratio

CPU = torch.device("cpu")
SMALL = ["--heads", "1", "--head-dim", "16", "--features", "32", "--rounds", "5"]


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


@pytest.mark.parametrize(
    "extra", [[], ["--backward"], ["--dtype", "bfloat16"], ["--rotation"], ["--rotation", "--backward"]], ids=str
)
def test_attention_of_every_method(extra, tmp_path, capsys):
    main(["length", "--tokens", "48", "96", *SMALL, *extra, "--out", str(tmp_path), "--device", "cpu"])
    found = read(tmp_path / "length.csv")
    assert [(row["method"], row["tokens"]) for row in found] == [
        (method, tokens) for tokens in ("48", "96") for method in contestants.METHODS
    ]
    for row in found:
        assert float(row["ms"]) > 0
        assert float(row["peak MiB"]) > 0
        assert math.isnan(share := float(row["of peak"])) == (row["method"] == "linear+lf")
        assert math.isnan(share) or share > 0  # not below 1: a timing, and a processor may only emulate bf16
        if row["method"] == "softmax" and not extra:
            assert float(row["error to softmax"]) < 1e-5
    assert (tmp_path / "length.png").stat().st_size > 0
    assert "performer-pytorch" in capsys.readouterr().out


@pytest.mark.parametrize("extra", [[], ["--backward"]], ids=str)
def test_layer_and_model(extra, tmp_path):
    """With their errors to a layer or model of the same weights whose attention is softmax."""
    main(["length", "--tokens", "12", "--levels", "layer", "model", *SMALL, *extra, "--out", str(tmp_path)])
    found = read(tmp_path / "length.csv")
    assert [row["level"] for row in found] == ["layer"] * 4 + ["model"] * 4
    for row in found:
        error = float(row["error to softmax"])
        if row["method"] == "linear+lf":
            assert math.isnan(error)
        else:
            assert error == 0 if row["method"] == "softmax" else 0 < error < 0.1


def test_the_models_have_the_same_weights():
    parser = argparse.ArgumentParser()
    length.add_arguments(parser)
    models = [contestants.vit_tiny(name, parser.parse_args([]), (3, 4), CPU) for name in contestants.METHODS]
    for model in models:
        for name, weight in dict(models[2].named_parameters()).items():
            assert torch.equal(model.get_parameter(name), weight)


def test_without_softmax_there_is_nothing_to_compare_with(tmp_path):
    main(["length", "--tokens", "12", "--levels", "layer", "--methods", "linear", *SMALL, "--out", str(tmp_path)])
    assert math.isnan(float(read(tmp_path / "length.csv")[0]["error to softmax"]))


def test_no_speed_for_a_path_that_is_wrong(monkeypatch, capsys):
    right = contestants.linear_attention
    monkeypatch.setattr(contestants, "linear_attention", lambda *a, **k: 1.01 * right(*a, **k))
    with pytest.raises(SystemExit):
        main(["length", "--tokens", "48", *SMALL, "--device", "cpu"])
    assert "from its definition at 1024 tokens" in capsys.readouterr().err


def steeper(out):
    """The same values, and gradients that are 0.2 % too large."""
    return out.detach() + 1.002 * (out - out.detach())


def test_no_speed_for_a_gradient_that_is_wrong(tmp_path, monkeypatch, capsys):
    right = contestants.linear_attention
    monkeypatch.setattr(contestants, "linear_attention", lambda *a, **k: steeper(right(*a, **k)))
    arguments = ["length", "--tokens", "48", *SMALL, "--device", "cpu", "--out", str(tmp_path)]
    main([*arguments, "--methods", "linear"])  # nothing is wrong with the values
    with pytest.raises(SystemExit):
        main([*arguments, "--backward"])
    assert "linear is 2.00e-03 from its definition in the gradient of q at 1024" in capsys.readouterr().err


def test_what_is_timed_with_backward_has_a_backward_pass():
    x = torch.ones(3, requires_grad=True)
    length.timed(lambda: x * 2, False)()
    assert x.grad is None
    length.timed(lambda: x * 2, True)()
    assert x.grad.tolist() == [2.0] * 3


def test_lengths_measured_before_a_stop_are_kept(tmp_path, monkeypatch, capsys):
    calls = []

    def stop(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return in_turn(*arguments)

    monkeypatch.setattr(length, "in_turn", stop)
    with pytest.raises(SystemExit):
        main(["length", "--tokens", "48", "96", "144", *SMALL, "--out", str(tmp_path), "--device", "cpu"])
    assert {row["tokens"] for row in read(tmp_path / "length.partial.csv")} == {"48", "96"}


def test_what_would_take_too_long_is_left_out():
    found = [{"method": m, "tokens": 100, "ms": 1000.0} for m in ("linear", "softmax")]
    assert length.affordable(found, ["linear", "softmax"], 200, 3.0) == ["linear"]
    assert length.affordable(found, ["linear", "softmax"], 200, 5.0) == ["linear", "softmax"]
    assert length.affordable([], ["linear", "softmax"], 10**9, 1.0) == ["linear", "softmax"]


def test_what_is_left_out_is_predicted_from_two_lengths(capsys):
    """Where most of the time does not depend on the length, the square would leave out what takes no longer."""
    found = [{"method": "softmax", "tokens": n, "ms": ms} for n, ms in ((50, 900.0), (100, 1000.0))]
    assert length.affordable(found, ["softmax"], 200, 2.1) == ["softmax"]
    assert length.affordable(found[1:], ["softmax"], 200, 2.1) == []
    assert "left out at 200 tokens: it would take 4.0 s a call if time grew as N^2.0" in capsys.readouterr().out


def test_the_crossover_is_measured_between_two_lengths(monkeypatch):
    """Linear takes 1000 units at any length, softmax as many as there are tokens."""

    class Fake:
        options = argparse.Namespace(rounds=5)

        def calls(self, methods, tokens):
            return {name: (name, tokens) for name in methods}, {}

    def timed(calls, rounds, device):
        return {name: [1000.0 if name == "linear" else float(tokens)] for name, (_, tokens) in calls.items()}

    monkeypatch.setattr(length, "in_turn", timed)
    found = [{"method": "linear", "tokens": n, "to softmax": 1000 / n} for n in (256, 512, 4096)]
    assert 1000 < length.crossover(Fake(), found, "linear", CPU) <= 1070
    assert length.crossover(Fake(), found[:2], "linear", CPU) is None
    assert length.crossover(Fake(), found[2:], "linear", CPU) == 4096


def test_grids_and_exponents():
    assert [length.grid_of(n) for n in (256, 512, 48, 7)] == [(16, 16), (16, 32), (6, 8), (1, 7)]
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert ratio([2, 4, 6], [1, 1, 3]) == 2
    calls: list[str] = []
    times = in_turn({n: (lambda n=n: calls.append(n)) for n in "ab"}, 3, CPU)
    assert calls == list("ab" * 4)
    assert [len(t) for t in times.values()] == [3, 3]


@pytest.mark.parametrize(
    ("method", "backward", "expected"),
    [("softmax", False, 2), ("softmax", True, 6), ("linear", False, 4), ("performer-pytorch", True, 10)],
)
def test_operations_are_those_that_torch_counts(method, backward, expected):
    """Of the plain products, at as many tokens as features; a product of [N, d] and [d, N] is N N d multiplications."""
    n, d = 16, 8
    q, k, v = torch.randn(3, n, d, requires_grad=True).unbind(0)
    w = torch.randn(n, d)
    with FlopCounterMode(display=False) as counter:
        softmax = method == "softmax"
        out = (q @ k.T).softmax(-1) @ v if softmax else (q @ w.T).exp() @ ((k @ w.T).exp().T @ v)
        if backward:
            out.sum().backward()
    options = argparse.Namespace(heads=1, head_dim=d, features=n, feature_map="favor+", backward=backward)
    assert contestants.operations(method, options, n) == counter.get_total_flops() == expected * 2 * n * n * d


def test_unknown_names(capsys):
    for arguments, message in (
        (["--methods", "liner"], "linear"),
        (["--levels", "layers"], "layer"),
        (["--rounds", "3"], "at least 5 rounds"),
    ):
        with pytest.raises(SystemExit):
            main(["length", "--tokens", "48", *arguments, "--device", "cpu"])
        assert message in capsys.readouterr().err
