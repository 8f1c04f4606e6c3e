"""The golden outputs: `python -m tests.golden.make_golden` writes them, and `test_golden_outputs` compares with them.

They are to be written again only where a change of the outputs is wanted; say so in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from . import attentions, encodings, features, localities, models
from .numbers import draw

OUTPUTS = Path(__file__).with_name("outputs.safetensors")
ROUNDING = OUTPUTS.with_name("rounding.txt")  # of the machine that wrote the outputs


@dataclass(frozen=True)
class Group:
    """Outputs that are computed together, and how far another machine may be off.

    Attributes:
        compute: the outputs.
        rtol: relative tolerance.
        atol: absolute tolerance.
        elsewhere: tolerance relative to the largest number of an output, where the processor or its libraries round
            in another way than those that wrote the outputs: sums over coarse nodes lose digits.
    """

    compute: Callable[[], dict[str, Tensor]]
    rtol: float = 1e-10
    atol: float = 1e-12
    elsewhere: float = 0.0


GROUPS: dict[str, Group] = {
    **{f"encodings {n}d": Group(partial(encodings.encodings, n)) for n in (1, 2, 3)},
    "encodings of layers and samples": Group(encodings.layers_and_samples),
    "encodings of other widths": Group(encodings.widths),
    "encodings untouched": Group(encodings.untouched),
    "feature maps": Group(features.feature_maps),
    "linear attention": Group(features.linear),
    "maps of one's own": Group(features.own_maps),
    "linear attention rotated": Group(attentions.linear_rotations),
    "linear attention of many tokens": Group(attentions.many_tokens),
    "softmax attention": Group(attentions.softmax),
    "attention of bf16": Group(attentions.bf16, 2e-2, 2e-2),
    "attention modules": Group(attentions.modules, 1e-4, 1e-5),
    "localities of few tokens": Group(localities.few_tokens, elsewhere=1e-6),
    "localities of many tokens": Group(localities.many_tokens, elsewhere=1e-6),
    "localities by walks": Group(localities.scans, elsewhere=1e-6),
    "localities and maps of one's own": Group(localities.own_parts, elsewhere=1e-6),
    "models: encodings": Group(models.encodings_by_attention),
    "models: options": Group(models.options),
    "models: uses": Group(models.uses),
    "models: checkpointed": Group(models.checkpointed),
    "models: performer-pytorch": Group(models.performer_pytorch, 1e-4, 1e-5),
    "models: float32": Group(partial(models.precision, "float32"), 1e-3, 1e-4),
    "models: autocast": Group(partial(models.precision, "autocast"), 5e-2, 5e-2),
    "models: bf16": Group(partial(models.precision, "bf16 model"), 1e-1, 1e-1),
}


def rounding() -> str:
    """Return a fingerprint of how this machine rounds: functions, sums, products and a Fourier transform in float64."""
    x = draw(64, 64, key=1)
    products = (x @ x.mT, torch.linalg.solve(x, x.mT), x.exp(), x.sin(), x.sum(0), x[0] @ x, torch.fft.rfft2(x).abs())
    digest = hashlib.sha256()
    for value in products:
        digest.update(np.ascontiguousarray(value.numpy()).tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    tensors: dict[str, Tensor] = {}
    for name, group in GROUPS.items():
        found = group.compute()
        for key, value in found.items():
            if not torch.isfinite(value).all():
                raise ValueError(f"{name}: {key} is not finite.")
            tensors[f"{name}|{key}"] = value.detach().contiguous().clone()
    save_file(tensors, OUTPUTS)
    ROUNDING.write_text(rounding() + "\n")
    print(f"{len(tensors)} outputs, {OUTPUTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
