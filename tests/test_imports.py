"""Imports point one way: eval -> train -> performer_string, and inside the library from the model down."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ORDER = [
    "precision",
    "modes",
    "constants",
    "choices",
    "logs",
    "positions",
    "rotation",
    "encodings",
    "naive",
    "features",
    "kernels",
    "locality",
    "checks",
    "key_bias",
    "attention",
    "values",
    "attend",
    "kept",
    "layers",
    "pooling",
    "config",
    "blocks",
    "vit",
    "batching",
    "folding",
    "pretrained",
]
FILES = sorted(p for name in ("performer_string", "train", "eval") for p in (REPOSITORY / name).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_packages_import_one_way(path):
    package = path.relative_to(REPOSITORY).parts[0]
    forbidden = {"performer_string": {"train", "eval", "tests"}, "train": {"eval", "tests"}, "eval": {"tests"}}[package]
    assert not {name.split(".")[0] for name in imported(path)} & forbidden


@pytest.mark.parametrize("path", [p for p in FILES if p.relative_to(REPOSITORY).parts[0] == "performer_string"])
def test_the_library_imports_downwards(path):
    parts = path.relative_to(REPOSITORY / "performer_string").with_suffix("").parts
    if parts == ("__init__",):
        return
    below = ORDER[: ORDER.index(parts[0]) + (len(parts) > 1)]  # a package imports its own files
    for name in imported(path):
        if name.startswith("performer_string."):
            assert name.split(".")[1] in below, f"{path} imports {name}"


def test_the_library_needs_torch_and_einops_only():
    heavy = ("torchvision", "lightning", "matplotlib", "performer_pytorch", "scipy", "triton")
    code = f"import sys, performer_string; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout.strip() == "[]"
