"""Speed by length: methods that are wrong get no speed, the crossover, and what is left out as too long."""

from __future__ import annotations

import argparse
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eval.cli import main, parse_arguments
from eval.speed import length, methods, vit_tiny
from eval.speed.measure import CapturedCall, time_in_turn
from eval.speed.reports import LENGTH
from tests.helpers.checkpoints import read

CPU = torch.device("cpu")
SMALL = ["--heads", "1", "--head-dim", "16", "--features", "32", "--rounds", "5"]


def small_product(dtype, device):
    a = torch.ones(32, 32, dtype=dtype, device=device)
    return lambda: a @ a, 2 * 32**3


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--backward"], ["--dtype", "bfloat16"]], ids=str)
def test_attention_of_every_method(extra, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(length, "square_product", small_product)  # one of bf16 takes seconds where it is emulated
    main(["length", "--tokens", "48", "96", *SMALL, *extra, "--out", str(tmp_path), "--device", "cpu"])
    rows = read(tmp_path / "length.csv")[1]
    assert [(row["method"], row["tokens"]) for row in rows] == [
        (method, tokens) for tokens in ("48", "96") for method in methods.METHODS
    ]
    for row in rows:
        assert float(row["ms"]) > 0
        assert float(row["peak MiB"]) > 0
        assert math.isnan(share := float(row["of peak"])) == (row["method"] == "linear+lf")
        assert math.isnan(share) or share > 0  # not below 1: a timing, and a processor may only emulate bf16
        if row["method"] == "softmax" and "--dtype" not in extra:
            assert float(row["error to softmax"]) < 1e-5
    assert (tmp_path / "length.png").stat().st_size > 0
    output = capsys.readouterr().out
    assert "performer-pytorch" in output
    assert "`of peak` is nan for linear+lf: operations are counted" in output


@pytest.mark.slow
@pytest.mark.parametrize(("level", "extra"), [("model", []), ("layer", ["--backward"])])
def test_layer_and_model(level, extra, tmp_path):
    """With their errors to a layer or model of the same weights whose attention is softmax."""
    main(["length", "--tokens", "12", "--levels", level, *SMALL, *extra, "--out", str(tmp_path)])
    rows = read(tmp_path / "length.csv")[1]
    assert [row["level"] for row in rows] == [level] * 5
    for row in rows:
        error = float(row["error to softmax"])
        if row["method"] in ("linear+lf", "linear+narrow"):
            assert math.isnan(error)
        else:
            assert error == 0 if row["method"] == "softmax" else 0 < error < 0.1


def test_models_have_the_same_weights():
    options = parse_arguments(["length"])
    models = {name: vit_tiny.vit_tiny(name, options, (3, 4), CPU) for name in methods.METHODS}
    assert models[methods.NARROW].config.qk_dim == 16
    for method, model in models.items():
        for name, weight in dict(models["softmax"].named_parameters()).items():
            own = model.get_parameter(name)
            of_queries = method == methods.NARROW and ("qkv" in name or name.startswith("encoding"))
            assert of_queries or torch.equal(own, weight)


def test_error_without_softmax(tmp_path):
    main(["length", "--tokens", "12", "--levels", "layer", "--methods", "linear", *SMALL, "--out", str(tmp_path)])
    assert math.isnan(float(read(tmp_path / "length.csv")[1][0]["error to softmax"]))


def test_wrong_output_has_no_speed(monkeypatch, capsys):
    right = methods.linear_attention
    monkeypatch.setattr(methods, "linear_attention", lambda *a, **k: 1.01 * right(*a, **k))
    with pytest.raises(SystemExit):
        main(["length", "--tokens", "48", *SMALL, "--device", "cpu"])
    assert "from its definition at 1024 tokens" in capsys.readouterr().err


def steeper(out):
    """The same values, and gradients that are 0.2 % too large."""
    return out.detach() + 1.002 * (out - out.detach())


@pytest.mark.slow
def test_wrong_gradient_has_no_speed(tmp_path, monkeypatch, capsys):
    right = methods.linear_attention
    monkeypatch.setattr(methods, "linear_attention", lambda *a, **k: steeper(right(*a, **k)))
    arguments = ["length", "--tokens", "48", *SMALL, "--device", "cpu", "--out", str(tmp_path)]
    main([*arguments, "--methods", "linear"])  # nothing is wrong with the values
    with pytest.raises(SystemExit):
        main([*arguments, "--backward"])
    assert "linear is 2.00e-03 from its definition in the gradient of q at 1024" in capsys.readouterr().err


def test_timed_call_has_a_backward_pass():
    x = torch.ones(3, requires_grad=True)
    length.with_backward(lambda: x * 2, False)()
    assert x.grad is None
    length.with_backward(lambda: x * 2, True)()
    assert x.grad.tolist() == [2.0] * 3


def test_lengths_measured_before_a_stop_are_written(tmp_path, monkeypatch, capsys):
    calls = []

    def stop(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return time_in_turn(*arguments)

    monkeypatch.setattr(length, "time_in_turn", stop)
    with pytest.raises(SystemExit):
        main(["length", "--tokens", "48", "96", "144", *SMALL, "--out", str(tmp_path), "--device", "cpu"])
    assert {row["tokens"] for row in read(tmp_path / "length.partial.csv")[1]} == {"48", "96"}


def test_method_that_takes_too_long_is_left_out():
    found = [{"method": m, "tokens": 100, "ms": 1000.0} for m in ("linear", "softmax")]
    assert length.affordable_methods(found, ["linear", "softmax"], 200, 3.0) == ["linear"]
    assert length.affordable_methods(found, ["linear", "softmax"], 200, 5.0) == ["linear", "softmax"]
    assert length.affordable_methods([], ["linear", "softmax"], 10**9, 1.0) == ["linear", "softmax"]


def test_time_is_predicted_from_two_lengths(capsys):
    """Where most of the time does not depend on the length, the square would leave out what takes no longer."""
    found = [{"method": "softmax", "tokens": n, "ms": ms} for n, ms in ((50, 900.0), (100, 1000.0))]
    assert length.affordable_methods(found, ["softmax"], 200, 2.1) == ["softmax"]
    assert length.affordable_methods(found[1:], ["softmax"], 200, 2.1) == []
    assert "left out at 200 tokens: it would take 4.0 s a call if time grew as N^2.0" in capsys.readouterr().err


def test_crossover_between_two_lengths(monkeypatch):
    """Linear takes 1000 units at any length, softmax as many as there are tokens."""

    def calls_of(level, attentions, methods, tokens):
        return {name: (name, tokens) for name in methods}, {}

    def timed(calls, rounds, device):
        return {name: [1000.0 if name == "linear" else float(tokens)] for name, (_, tokens) in calls.items()}

    def crossover(rows):
        return length.crossover(
            "attention", argparse.Namespace(options=argparse.Namespace(rounds=5), device=CPU), rows, "linear"
        )

    monkeypatch.setattr(length, "calls_of", calls_of)
    monkeypatch.setattr(length, "time_in_turn", timed)
    found = [{"method": "linear", "tokens": n, "to softmax": 1000 / n} for n in (256, 512, 4096)]
    assert 1000 < crossover(found) <= 1070
    assert crossover(found[:2]) is None
    assert crossover(found[2:]) == 4096
    once = [{"method": "linear", "tokens": 128, "to softmax": 0.9}, *found]  # faster at 128, and slower again above
    assert 1000 < crossover(once) <= 1070
    assert crossover(once[:3]) is None


def test_grid_nearest_to_a_square():
    assert [methods.near_square_grid(n) for n in (256, 512, 48, 7)] == [(16, 16), (16, 32), (6, 8), (1, 7)]


@pytest.mark.parametrize(
    ("method", "backward", "expected"),
    [
        *(("softmax", False, 2), ("softmax", True, 6), ("linear", False, 4), ("performer-pytorch", True, 10)),
        *(("linear+narrow", False, 3), ("linear+narrow", True, 8)),
    ],
)
def test_operations_are_those_of_torch(method, backward, expected):
    """Of the plain products, at as many tokens as features; a product of [N, d] and [d, N] is N N d multiplications."""
    n, d = 16, 8
    narrow = d // 2 if method == methods.NARROW else d
    q, k, v = (torch.randn(n, width, requires_grad=True) for width in (narrow, narrow, d))
    w = torch.randn(n, narrow)
    with FlopCounterMode(display=False) as counter:
        softmax = method == "softmax"
        out = (q @ k.T).softmax(-1) @ v if softmax else (q @ w.T).exp() @ ((k @ w.T).exp().T @ v)
        if backward:
            out.sum().backward()
    options = argparse.Namespace(
        batch_size=1, heads=1, head_dim=d, qk_dim=d // 2, features=n, feature_map="favor+", backward=backward
    )
    assert methods.operations(method, options, n) == counter.get_total_flops() == expected * 2 * n * n * d


def test_operations_that_are_not_counted_are_said():
    """Of a feature map of one's own, and of a decay; layers and models have no share of the peak at all."""
    shares = {"linear": math.nan, "linear+lf": math.nan, "softmax": 0.5}
    rows = [{"level": "attention", "method": name, "of peak": share} for name, share in shares.items()]
    (note,) = LENGTH.notes(rows)
    assert note.startswith("`of peak` is nan for linear, linear+lf: operations are counted for attention without")
    assert not LENGTH.notes(rows[2:])
    assert not LENGTH.notes([{**rows[0], "level": "layer"}])


def test_unknown_names(capsys):
    for arguments, message in (
        (["--methods", "liner"], "linear"),
        (["--levels", "layers"], "layer"),
        (["--rounds", "3"], "a number of 5 or more"),
    ):
        with pytest.raises(SystemExit):
            main(["length", "--tokens", "48", *arguments, "--device", "cpu"])
        assert message in capsys.readouterr().err


def test_graphs_need_a_gpu(capsys):
    with pytest.raises(SystemExit):
        main(["length", "--tokens", "48", *SMALL, "--device", "cpu", "--graphs"])
    assert "CUDA graphs" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_call_repeats_its_kernels():
    x, total = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    call = CapturedCall(lambda: total.add_(x))
    before = total.clone()
    call()
    assert torch.equal(total, before + 1)
