"""Bases folded into the projections for good: for inference every separable encoding is then RoPE."""

from __future__ import annotations

import copy
from typing import cast

import torch

from performer_string.encodings import Encoding, SeparableEncoding
from performer_string.vit import Block, ViT


@torch.no_grad()
def fold(model: ViT) -> ViT:
    """A copy of the model, in evaluation mode, with W_Q and W_K replaced by B^T W_Q and B^T W_K, layer by layer.

    The outputs are those of the model; the encodings of the copy have no basis left to compute or to apply. The model
    itself stays as it is, to be trained on. Encodings without a basis (RoPE, LieRE, absolute) are left as they are.
    """
    folded = copy.deepcopy(model).eval()
    encodings = [cast(Encoding, encoding) for encoding in folded.encodings]
    for layer, block in enumerate(folded.blocks):
        encoding = encodings[min(layer, len(encodings) - 1)]  # one encoding may serve all layers
        if isinstance(encoding, SeparableEncoding):
            attention = cast(Block, block).attention
            weight, bias = attention.fold(encoding.basis())
            attention.qkv.weight.copy_(weight)
            attention.qkv.bias.copy_(bias)
    for encoding in encodings:
        if isinstance(encoding, SeparableEncoding):
            encoding.folded = True
    return folded
