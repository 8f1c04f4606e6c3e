"""Logits of whole Vision Transformers: every encoding by every kind of attention, and every option of the model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from performer_string import ViT, ViTConfig, batch_images, fold
from performer_string.utils.renames import current_fields

from .encodings import CASES, case_id, spread
from .numbers import draw, fill, gradients, projected

SIZES: dict[str, Any] = {
    "image_size": [12, 16],
    "patch_size": 4,
    "in_channels": 2,
    "num_classes": 5,
    "width": 24,
    "depth": 2,
    "num_heads": 2,
    "seed": 3,
}
KINDS: dict[str, dict[str, Any]] = {
    "favor+": {"feature_options": {"num_features": 16}},
    "relu": {"feature_map": "relu", "feature_options": {"num_features": 16, "order": 2}},
    "polynomial": {"feature_map": "polynomial", "feature_options": {}},
    "softmax": {"attention": "softmax"},
}
TAYLOR = {"feature_map": "polynomial", "feature_options": {"lower": True}}
RELU4 = {"feature_map": "relu", "feature_options": {"num_features": 16, "order": 4}}
HYPERBOLIC = {"feature_map": "favor+hyperbolic", "feature_options": {"num_features": 16}}
OPTIONS: list[dict[str, Any]] = [
    {"pool": "cls"},
    {"pool": "attention"},
    {"pool": "attention", "registers": 2},
    {"registers": 3},
    {"num_classes": 0},
    {"share_layers": True},
    {"centred": True},
    {"centred": True, "encoding": "pate-so2", "registers": 1},
    {"positions": "interpolate"},
    {"position_grid": [5, 4], "positions": "interpolate"},
    {"mlp_ratio": 2.5, "norm_eps": 1e-3, "drop_path": 0.3},
    {"depth": 3, "seed": 11},
    {"qk_norm": True},
    {"qk_norm": True, "max_temperature": 5.0, **KINDS["softmax"]},
    {"qk_norm": True, **KINDS["relu"]},
    {"qk_norm": True, **HYPERBOLIC},
    {"qk_norm": True, **TAYLOR},
    {"qk_norm": True, "feature_options": {"num_features": 16, "scale": 0.9}},
    {"key_gate": True},
    {"key_gate": True, **RELU4},
    {"key_gate": True, **KINDS["softmax"]},
    {"key_gate": True, **KINDS["polynomial"]},
    {"key_gate": True, "locality": "gaussian", **TAYLOR},
    {"log_scale": True},
    {"log_scale": True, "qk_norm": True, "registers": 2, **KINDS["softmax"]},
    {"log_scale": True, "position_grid": [6, 6], **TAYLOR},
    {"tied_start": True},
    {"tied_start": True, **KINDS["softmax"]},
    HYPERBOLIC,
    TAYLOR,
    RELU4,
    {"feature_options": {"num_features": 16, "learned": True}},
    {"feature_options": {"num_features": 16, "scale": 0.9}},
    *({"locality": name} for name in ("gaussian", "exponential", "radial", "table")),
    *({"locality": name, "pool": "cls", "registers": 1, **KINDS["relu"]} for name in ("gaussian", "table")),
    *(
        {"locality": name, "locality_options": {"normalised": True}, **KINDS["softmax"]}
        for name in ("gaussian", "exponential", "radial", "table")
    ),
    {"locality": "gaussian", "locality_options": {"sigma": 1.5, "amplitude": 0.7}, "positions": "interpolate"},
    {"values": "gating"},
    {"values": "gating", "value_options": {"source": "query"}, "encoding": "cayley-string"},
    {"values": "metric-gating"},
    {"values": "metric-gating", "value_options": {"source": "query"}, **KINDS["softmax"]},
    {"values": "group-action"},
    {"values": "group-action", "value_options": {"encoding": "circulant-string"}, "centred": True, "registers": 1},
    {"values": "group-action", "value_options": {"encoding": "pate-so2", "encoding_options": {"metric": True}}},
    {"values": "connection"},
    {"values": "connection", "value_options": {"encoding": "liere", "encoding_options": {"block_size": 4}}},
    {"values": "connection", "value_options": {"encoding": "pate-so3"}, **KINDS["softmax"]},
    {"values": "lepe"},
    {"values": "lepe", "value_options": {"kernel_size": 5}, "positions": "interpolate", "registers": 2},
    {"values": "lepe", "locality": "gaussian", "key_gate": True, **KINDS["relu"]},
]
# Of one and of three axes: sequences and videos.
AXES: list[dict[str, Any]] = [
    {"image_size": [24], "patch_size": [2]},
    {"image_size": [24], "patch_size": [2], "encoding": "rope", "locality": "exponential", "values": "lepe"},
    {"image_size": [24], "patch_size": [2], "encoding": "absolute", "pool": "cls", "locality": "table"},
    {"image_size": [4, 6, 8], "patch_size": [2, 3, 2]},
    {"image_size": [4, 6, 8], "patch_size": [2, 3, 2], "encoding": "liere", "locality": "radial", "values": "lepe"},
    {"image_size": [4, 6, 8], "patch_size": [2, 3, 2], "encoding": "sinusoidal", "centred": True, "locality": "table"},
]
OTHER = (20, 8)  # pixels: another resolution than that of training, in one axis larger and in one smaller


def build(**changes: Any) -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**current_fields({**SIZES, "encoding": "circulant-string", **KINDS["favor+"], **changes})))
    if changes.get("encoding_options", {}).get("generator") == "random":
        spread(model, SIZES["width"] // SIZES["num_heads"])
    return fill(model)


def images(*sizes: int, batch: int = 2) -> Tensor:
    return 1.5 * draw(batch, SIZES["in_channels"], *sizes, key=2)


@torch.no_grad()
def encodings_by_attention() -> dict[str, Tensor]:
    """Return logits of every encoding by four kinds of attention, at the training resolution and at another."""
    out: dict[str, Tensor] = {}
    for name, options in CASES:
        for kind, more in KINDS.items():
            model = build(encoding=name, encoding_options=options, **more)
            out[f"{case_id(name, options)}/{kind}"] = torch.cat([model(images(12, 16)), model(images(*OTHER))])
    return out


def options() -> dict[str, Tensor]:
    """Return logits with each option, at two resolutions, under a mask and at given positions, and gradients."""
    out: dict[str, Tensor] = {}
    for changes in (*OPTIONS, *AXES):
        key, model = case_id("", changes), build(**changes)
        size = changes.get("image_size", SIZES["image_size"])
        other = OTHER if len(size) == 2 else [n + p for n, p in zip(size, changes["patch_size"], strict=True)]
        with torch.no_grad():
            out[f"{key}/logits"] = torch.cat([model(images(*size)), model(images(*other))])
            patches = math.prod(model.grid(*size))
            mask = draw(2, patches, key=3) > -0.6
            out[f"{key}/masked"] = model(images(*size), patch_mask=mask)
            positions = model.grid_positions(model.grid(*size)) * 1.3 + 0.4
            out[f"{key}/positions"] = model(images(*size), positions=positions)
        given = images(*size, batch=1).requires_grad_()
        found = gradients(model.train()(given) if not changes.get("drop_path") else model(given), given, module=model)
        out[f"{key}/gradient"] = torch.stack([projected(found[0]), projected(found[1])])
    return {key: value.detach() for key, value in out.items()}


@torch.no_grad()
def uses() -> dict[str, Tensor]:
    """Return what else a model is asked for: batches of several sizes, folds, features, redraws, counts."""
    out: dict[str, Tensor] = {}
    several = [images(*size, batch=1)[0] for size in ((12, 16), (8, 8), (16, 4))]
    kinds: list[dict[str, Any]] = [
        {},
        {"key_gate": True, "locality": "gaussian", **KINDS["relu"]},
        {"encoding": "absolute", "registers": 1, "pool": "attention"},
        {"encoding": "liere", "centred": True, "values": "group-action"},
        {"encoding": "pate-so4", "qk_norm": True, "log_scale": True, "pool": "cls", **KINDS["softmax"]},
        {"positions": "interpolate", "values": "lepe"},
    ]
    for changes in kinds:
        model = build(**changes)
        out[f"{case_id('batch', changes)}"] = model(**batch_images(model, several))
    for changes in (
        {},
        {"encoding": "cayley-string", "key_gate": True, "values": "gating", "value_options": {"source": "query"}},
        {"encoding": "cayley-string", "share_layers": True, **KINDS["softmax"]},
        {"encoding": "cayley-string", "encoding_options": {"share_heads": True}, "qk_norm": True},
        {"encoding": "pate-so2", "encoding_options": {"metric": True}, **KINDS["polynomial"]},
        {"encoding": "pate-so3", "encoding_options": {"conformal_scaling": 0.5}},
        {"encoding": "rope"},
    ):
        folded = fold(build(**changes))
        out[f"{case_id('fold', changes)}"] = folded(images(*OTHER))
    model = build(registers=2)
    features = model.forward_features(images(12, 16))
    out["features"], out["pooled"] = projected(features, 2), model.forward_head(features, pre_logits=True)
    out["patches"] = projected(model.patch_features(images(12, 16)), 2)
    model.redraw(5)
    out["redrawn"] = model(images(12, 16))
    own = torch.stack([model.grid_positions((3, 4)), model.grid_positions((3, 4)).flip(0) * 0.8])
    out["positions of samples"] = build(encoding="cayley-string", centred=True)(images(12, 16), positions=own)
    for changes in ({}, {"variant": "micro", "width": None, "depth": None, "num_heads": None}, {"registers": 1}):
        model = build(**changes)
        kept = model.no_weight_decay()
        counts = [p.numel() for p in model.parameters()], [p.numel() for n, p in model.named_parameters() if n in kept]
        out[f"{case_id('counts', changes)}"] = torch.tensor([float(sum(count)) for count in counts])
    for changes in ({"tied_start": True}, {"tied_start": False}):
        torch.manual_seed(0)
        model = ViT(ViTConfig(**current_fields({**SIZES, **changes})))
        projections = [p.chunk(3) for p in model.parameters() if p.shape == (72, 24)]
        out[f"{case_id('start', changes)}"] = torch.tensor([float(torch.equal(q, k)) for q, k, _ in projections])
    return out


def checkpointed() -> dict[str, Tensor]:
    """Return gradients of a model that computes each block again in the backward pass."""
    model = build(registers=1, key_gate=True, locality="gaussian", encoding="cayley-string").train()
    model.set_grad_checkpointing()
    given = images(12, 16).requires_grad_()
    found = gradients(model(given), given, module=model)
    return {"image": projected(found[0], 2), "parameters": found[1]}


PRECISE: list[dict[str, Any]] = [
    *({"encoding": name, **more} for name in ("circulant-string", "cayley-string") for more in KINDS.values()),
    {"encoding": "liere", "qk_norm": True, "key_gate": True},
    {"encoding": "rope", "locality": "gaussian", "values": "lepe", **KINDS["relu"]},
    {"encoding": "pate-so2", "pool": "attention", "registers": 2, **HYPERBOLIC},
]


@torch.no_grad()
def precision(kind: str) -> dict[str, Tensor]:
    """Return logits in float32, under autocast to bf16, or of a model in bf16."""
    out: dict[str, Tensor] = {}
    dtype = torch.bfloat16 if kind == "bf16 model" else torch.float32
    for changes in PRECISE:
        model = build(**changes).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            out[case_id("", changes)] = model(images(12, 16).to(dtype)).float()
    return out


@torch.no_grad()
def performer_pytorch() -> dict[str, Tensor]:
    """Return logits with the attention of performer-pytorch, whose draws are of the precision of float32."""
    out: dict[str, Tensor] = {}
    for changes in (KINDS["favor+"], KINDS["relu"], {"encoding": "liere", "qk_norm": True, "registers": 1}):
        model = build(attention="performer-pytorch", **changes)
        out[case_id("", changes)] = torch.cat([model(images(12, 16)), model(images(*OTHER))])
    return out
