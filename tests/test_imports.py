"""What an import brings with it. That imports go down is held by `lint-imports`, whose contracts stand in pyproject."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
HEAVY = (
    "torchvision",
    "lightning",
    "matplotlib",
    "performer_pytorch",
    "scipy",
    "triton",
    "timm",
    "huggingface_hub",
    "safetensors",
    "onnx",
)


def test_the_library_needs_torch_and_einops_only():
    code = f"import sys, performer_string; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout.strip() == "[]"
