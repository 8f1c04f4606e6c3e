"""The Triton kernels compile, for GPUs that are not here: the interpreter takes much that the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from eval.__main__ import main
from eval.budget import side_by_side
from tests.helpers.checkpoints import read

pytest.importorskip("triton")
KERNELS = {"key_pass", "merge_keys", "query_pass", "query_gradients", "feature_sums", "merge_features", "key_gradients"}


@pytest.mark.parametrize(("capability", "dtype"), [("80", "bfloat16"), ("90", "bfloat16"), ("90", "float32")])
def test_every_kernel_compiles_and_fits(tmp_path, capability, dtype):
    command = ["budget", "--first", "--head-dims", "64", "--capability", capability, "--dtype", dtype]
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    surroundings["TRITON_CACHE_DIR"] = str(tmp_path / "cache")  # or nothing might be compiled
    told = subprocess.run(
        [sys.executable, "-m", "eval", *command, "--out", str(tmp_path)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found = read(tmp_path / "budget.csv")[1]
    assert {(row["kernel"], row["order"]) for row in found} == {(name, order) for name in KERNELS for order in "04"}
    for row in found:
        assert int(row["side by side"]) > 0
        if dtype == "bfloat16":
            assert int(row["spilled bytes"]) == 0
        if dtype == "bfloat16" and "merge" not in row["kernel"]:
            assert int(row["wgmma" if capability == "90" else "mma"]) > 0
    assert (tmp_path / "budget.png").is_file()


def test_nothing_is_compiled_under_the_interpreter(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit):
        main(["budget", "--out", str(tmp_path)])
    assert "unset it" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--head-dims", "63"), ("--head-dims", "256"), ("--orders", "17")])
def test_what_the_kernels_do_not_take(tmp_path, monkeypatch, capsys, option, value):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit):
        main(["budget", option, value, "--out", str(tmp_path)])
    assert f"not [{value}]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "capability", "expected"),
    [
        (128, 40, 4, "90", 4),  # registers: 16 K of 64 K each
        (130, 40, 4, "90", 3),  # rounded up to 136
        (32, 75, 4, "90", 3),  # memory: 76 KiB of 228 each
        (16, 0, 8, "86", 6),  # warps: 8 of 48 each
        (255, 0, 8, "90", 1),
        (40, 100, 4, "89", 0),  # one more than there is
    ],
)
def test_programs_side_by_side(registers, shared, warps, capability, expected):
    assert side_by_side(registers, shared, warps, capability) == expected
