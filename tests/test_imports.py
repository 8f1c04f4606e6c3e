"""What an import brings with it. That imports go down is held by `lint-imports`, whose contracts stand in pyproject."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from performer_string.utils.public_names import MODULES

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


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_the_library_needs_torch_and_einops_only():
    code = (
        "import sys, performer_string; before = 'torch' in sys.modules\n"
        "print(performer_string.models.vit.ViT.__name__, end=' ')\n"  # a part whose module nothing has imported
        "for name in performer_string.__all__: getattr(performer_string, name)\n"
        f"print(before, [m for m in {HEAVY} if m in sys.modules])"
    )
    assert printed(code) == "ViT False []"


def test_names_are_imported_when_they_are_used():
    import performer_string

    listed = {name for names in MODULES.values() for name in names}
    assert set(performer_string.__all__) <= listed | set(performer_string.FORMER_NAMES)
    assert listed | set(performer_string.__all__) <= set(dir(performer_string))
    assert performer_string.OffsetKernel is performer_string.RelativeBias
    with pytest.raises(AttributeError, match="has no attribute 'VIT'"):
        _ = performer_string.VIT


def test_packages_have_the_public_names_of_their_modules():
    import performer_string

    for module, names in MODULES.items():
        package, _, _ = module.partition(".")
        own = importlib.import_module(f"performer_string.{package}")
        for name in names:
            if package != "utils":
                assert getattr(own, name) is getattr(performer_string, name)
    with pytest.raises(ImportError, match="cannot import name 'ViTs'"):
        from performer_string.models import ViTs  # noqa: F401
