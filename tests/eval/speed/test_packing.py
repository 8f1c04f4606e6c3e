"""What packing saves over padding."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from eval.cli import main
from eval.speed import packing
from tests.helpers.checkpoints import read

SMALL = ["--variant", "micro", "--patch-size", "4", "--features", "8", "--images", "4", "--device", "cpu"]


@pytest.mark.parametrize("feature_map", ["favor+", "elu"])  # elu takes no number of features
def test_ratio_is_of_times_in_one_round(feature_map, monkeypatch):
    monkeypatch.setattr(packing, "time_in_turn", lambda calls, rounds, device: {False: [2.0, 8.0], True: [1.0, 2.0]})
    sizes = {"sides": [(8, 24)], "images": 5, "variant": "micro", "patch_size": 4, "features": 8}
    options = Namespace(attention=["linear"], feature_map=feature_map, backward=False, rounds=5, seed=0, **sizes)
    (row,) = packing.evaluate(options, torch.device("cpu"))
    images = packing.draw_images((8, 24), 4, 5, 0, torch.device("cpu"))
    assert row["tokens"] == sum(image[0].numel() for image in images) // 16
    assert row["padded tokens"] == 5 * max(x.shape[1] for x in images) * max(x.shape[2] for x in images) // 16
    assert (row["packed to padded"], row["padded (ms)"]) == (0.375, 5000.0)
    assert float(row["difference"]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--backward", "--feature-map", "polynomial"]], ids=str)
def test_packing(tmp_path, capsys, more):
    main(["packing", *SMALL, "--sides", "8-8", "8-20", "--out", str(tmp_path), *more])
    rows = read(tmp_path / "packing.csv")[1]
    assert [(row["attention"], row["sides"]) for row in rows] == [
        (attention, sides) for attention in ("linear", "softmax") for sides in ("8-8", "8-20")
    ]
    assert rows[0]["tokens to padded"] == "1.0"
    assert float(rows[1]["tokens to padded"]) < 1
    assert all(float(row["packed to padded"]) > 0 for row in rows)
    assert (tmp_path / "packing.png").is_file()
    assert "packed to padded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sides", "20-8"], "a range of sides is like 96-352, not '20-8'"),
        (["--sides", "17-18"], "no side from 17 to 18 pixels is a multiple of the patch size 16"),
        (["--rounds", "2"], "a number of 5 or more is needed here, not '2'"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["packing", "--variant", "micro", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
