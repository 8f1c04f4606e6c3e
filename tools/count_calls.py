"""Count the Python calls and files in the forward pass of one attention layer.

    python tools/count_calls.py [-v] [--all]

A call is a Python function of `performer_string` entered during `SelfAttention.forward`, after a warm-up. With `--all`
those of torch and the standard library count too. `-v` lists the functions. The rotation is prepared before, since a
model prepares it once for all layers.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import performer_string
from performer_string import ViT, ViTConfig

LIBRARY = str(Path(performer_string.__file__).parent)
CASES: dict[str, dict[str, Any]] = {
    "linear (favor+)": {"attention": "linear"},
    "linear (favor+), qk_norm and key_gate": {"attention": "linear", "qk_norm": True, "key_gate": True},
    "softmax": {"attention": "softmax"},
    "linear with a gaussian decay": {"attention": "linear", "locality": "gaussian"},
}


def count(options: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of calls of one layer in a training step's forward pass, by function and by file."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=320, patch_size=16, width=64, depth=1, num_heads=4, num_classes=2, **options))
    images, functions, files = torch.randn(2, 3, 320, 320), Counter[str](), Counter[str]()
    layer = model.blocks[0].attention

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and ("--all" in sys.argv or code.co_filename.startswith(LIBRARY)):
            name = code.co_filename.removeprefix(LIBRARY + "/")
            files[name] += 1
            functions[f"{name}:{code.co_qualname if sys.version_info >= (3, 11) else code.co_name}"] += 1

    start = layer.register_forward_pre_hook(lambda *_: sys.setprofile(profile))
    end = layer.register_forward_hook(lambda *_: sys.setprofile(None))
    for _ in range(2):  # the first pass fills caches
        functions.clear(), files.clear()
        model(images)
    start.remove(), end.remove()
    return functions, files


def main() -> None:
    for name, options in CASES.items():
        functions, files = count(options)
        print(f"{name}: {functions.total()} calls in {len(files)} files")
        if "-v" in sys.argv:
            for function, calls in functions.most_common():
                print(f"    {calls:3}  {function}")


if __name__ == "__main__":
    main()
