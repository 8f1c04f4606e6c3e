"""What an encoding costs beside RoPE."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from eval.cli import main
from eval.encodings import latency
from performer_string import ViTConfig
from tests.helpers.checkpoints import read


def test_ratio_is_to_the_rope_measured_beside_it(monkeypatch):
    """Not to the one measured for itself: a machine's speed drifts."""
    seconds = {("rope", True): 1.0, ("rope", False): 1.0, ("liere", True): 6.0, ("liere", False): 2.0}

    def time_in_turn(calls, rounds, device):
        return {key: [seconds[key[0], key[2]]] * rounds for key in calls}

    monkeypatch.setattr(latency, "time_in_turn", time_in_turn)
    sizes = {"variant": "micro", "image_size": 8, "patch_size": 4, "features": 8, "batch_size": 1, "qk_dim": 6}
    options = Namespace(encodings=["liere"], attention="linear", rounds=5, **sizes)
    row = list(latency.evaluate(options, torch.device("cpu")))[1]
    assert (row["encoding"], row["step to rope"], row["inference to rope"]) == ("liere", 3.0, 3.0)


def test_inference_is_folded_and_a_step_is_not():
    config = ViTConfig(8, 4, variant="micro", encoding="cayley-string", feature_options={"num_features": 8})
    one = latency.TimedModel(config, 1, torch.device("cpu"))
    assert one.folded.encoding.is_folded
    assert not one.model.encoding.is_folded
    assert one.model.training
    assert not one.folded.training


def test_rotations_are_those_of_the_model_that_is_not_folded():
    """With its basis, whose solve is what is timed."""
    config = ViTConfig(8, 4, variant="micro", encoding="cayley-string", feature_options={"num_features": 8})
    one = latency.TimedModel(config, 1, torch.device("cpu"))
    rotations = one.rotate()
    assert len(rotations) == len(one.model.blocks)
    torch.testing.assert_close(torch.cat([rotation.basis for rotation in rotations]), one.model.encoding.basis())


def test_all_names_and_others_beside_them():
    every, mine = list(latency.chosen_encodings(["all"])), "rope base=50"
    assert list(latency.chosen_encodings(["all", mine])) == [*every, mine]


@pytest.mark.slow
def test_latency_of_encodings(tmp_path, capsys):
    small = ["--variant", "micro", "--image-size", "8", "--patch-size", "4", "--features", "8", "--batch-size", "1"]
    banded = "cayley-string generator=banded bandwidth=1"
    encodings = ["rope-mixed", "cayley-string", "circulant-string", "liere", banded, "cayley-string, banded"]
    main(["latency", *small, "--rounds", "5", "--encodings", *encodings, "--out", str(tmp_path)])
    by_name = {row["encoding"]: row for row in read(tmp_path / "latency.csv")[1]}
    # 4 layers of 4 heads of 12: 12 frequencies a head, 66 entries of S, 10 coefficients, 2 x 66 entries of A, 11 and 21
    # entries of one and two diagonals
    expected = {"rope": 0, "rope-mixed": 192, "cayley-string": 192 + 1056, "circulant-string": 160, "liere": 2112}
    expected |= {banded: 192 + 176, "cayley-string, banded": 192 + 336}
    assert {name: int(row["of the encoding"]) for name, row in by_name.items()} == expected
    assert all(
        float(row[name]) > 0
        for row in by_name.values()
        for name in ("step to rope", "inference to rope", "rotations (ms)")
    )
    capsys.readouterr()
    main(
        ["latency", *small[2:], "--variant", "tiny", "--rounds", "5", "--encodings", "pate-so3", "--out", str(tmp_path)]
    )
    assert "pate-so3 is left out: pate-so3 rotates blocks of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'"),
        (["--encodings", "caley-string k=8"], "unknown encoding 'caley-string'. Did you mean 'cayley-string'"),
        (["--encodings", "cayley-string k=8 banded"], "options of an encoding are OPTION=VALUE, as in"),
        (["--encodings", "cayley-string bandwith=2"], "has no option 'bandwith'. Did you mean 'bandwidth'"),
        (["--encodings", "cayley-string generator=top-k k=many"], "k must be int | None, not 'many'"),
        (["--rounds", "3"], "a number of 5 or more is needed here, not '3'"),
        (["--attention", "sofmax"], "Did you mean 'softmax'"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["latency", *arguments])
    assert message in capsys.readouterr().err
