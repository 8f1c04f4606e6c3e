"""What a training step costs beside that of a plain ViT."""

from __future__ import annotations

import pytest
import torch

from eval.cli import main, parse_arguments
from eval.speed import steps
from tests.helpers.checkpoints import read

pytest.importorskip("timm")
SMALL = ["--image-size", "8", "--features", "4", "--batch-size", "2", "--rounds", "5", "--device", "cpu"]


def test_every_model_takes_a_step(tmp_path, monkeypatch):
    """With the ratio of times in the same round."""
    taken = []

    def timed(calls, rounds, device):
        for name, call in calls.items():
            call()
            taken.append(name)
        return {name: [1.0, 4.0] if name[0] == steps.PLAIN else [2.0, 6.0] for name in calls}

    monkeypatch.setattr(steps, "time_in_turn", timed)
    main(["steps", *SMALL, "--out", str(tmp_path)])
    rows = read(tmp_path / "steps.csv")[1]
    pairs = [(name, encoding) for name in steps.MODELS for encoding in ("absolute", "circulant-string")]
    assert [(row["model"], row["encoding"]) for row in rows] == taken == [(steps.PLAIN, "absolute"), *pairs]
    assert [float(row["to plain"]) for row in rows] == [1.0] + [1.75] * len(pairs)
    assert rows[1]["images/s"] == "0.5"  # two images in 4 s
    assert (tmp_path / "steps.png").is_file()


def test_models_have_the_same_sizes():
    """But for the rotation, the random features' norms and narrow queries."""
    options = parse_arguments(["steps", *SMALL])
    count = {name: sum(p.numel() for p in steps.build(name, options)[0].parameters()) for name in steps.MODELS}
    plain = sum(p.numel() for p in steps.build(steps.PLAIN, options)[0].parameters())
    assert count["softmax"] == count["arc-cosine"] == plain
    assert count["polynomial, narrow"] < 0.95 * count["polynomial"]


def test_a_step_changes_every_weight():
    model = torch.nn.Linear(3, 4)
    before = model.weight.detach().clone()
    steps.step(model, torch.optim.AdamW(model.parameters()), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0]))
    assert (model.weight != before).all()


def test_steps_in_mixed_precision():
    model, types = torch.nn.Linear(3, 4), []
    model.register_forward_hook(lambda module, given, out: types.append(out.dtype))
    batch = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    for dtype in ("float32", "bfloat16"):
        steps.step(model, torch.optim.AdamW(model.parameters()), *batch, dtype)
    assert types == [torch.float32, torch.bfloat16]
    assert model.weight.dtype == torch.float32


def test_unknown_names(capsys):
    with pytest.raises(SystemExit):
        main(["steps", *SMALL, "--models", "polinomial"])
    assert "polynomial" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["steps", *SMALL, "--encodings", "roep"])
    assert "Did you mean 'rope'" in capsys.readouterr().err
