"""Swap the attention of a Vision Transformer of timm in place, and measure the error of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.layers.inspection import evaluation_mode
from performer_string.models.config.parts import check_attention_name
from performer_string.models.convert.narrow_timm import narrow_attention
from performer_string.models.convert.timm_attention import TimmAttention
from performer_string.models.convert.timm_checks import check_measured_images, check_model, grid_of, import_timm
from performer_string.models.convert.timm_parts import TimmParts
from performer_string.position.grid import PositionMode, check_position_mode
from performer_string.utils.dtype import check_float64


@dataclass(frozen=True)
class LayerError:
    """Error of one layer.

    Attributes:
        name: name of the attention in the model, as `blocks.0.attn`.
        error: relative error |new - old| / |old| of the attention's outputs (Frobenius norms) for the inputs of timm's;
            None without images.
        scores: relative error of the scores due to `qk_dim`, as `low_rank` defines it; None without one.
    """

    name: str
    error: float | None
    scores: float | None = None


@dataclass(frozen=True)
class PerformerizeReport:
    """Report of `performerize` on the layers that it swapped. `print(report)` is a table.

    Attributes:
        layers: one entry for each attention that was swapped.
        output: relative error of the model's outputs, to which those of the layers add up; None without images.
        no_weight_decay: names of the new parameters that weight decay would harm, such as frequencies and widths of
            decays, besides those of the model's own `no_weight_decay()`.
    """

    layers: tuple[LayerError, ...]
    output: float | None = None
    no_weight_decay: frozenset[str] = frozenset()

    def __str__(self) -> str:
        rows = [("layer", "relative error", "of the scores")]
        rows += [(each.name, as_text(each.error), as_text(each.scores)) for each in self.layers]
        rows.append(("output of the model", as_text(self.output), ""))
        width = max(len(name) for name, _, _ in rows)
        columns = 2 if any(each.scores is not None for each in self.layers) else 1
        return "\n".join(f"{name:<{width}}" + "".join(f"  {x:>14}" for x in rest[:columns]) for name, *rest in rows)


def as_text(error: float | None) -> str:
    """Return the text of an error in a table."""
    return "not measured" if error is None else f"{error:.2e}"


def performerize(
    model: nn.Module,
    attention: str = "linear",
    *,
    feature_map: str = "favor+",
    feature_options: Mapping[str, Any] | None = None,
    attention_options: Mapping[str, Any] | None = None,
    encoding: str | None = None,
    encoding_options: Mapping[str, Any] | None = None,
    locality: str | None = None,
    locality_options: Mapping[str, Any] | None = None,
    values: str | None = None,
    value_options: Mapping[str, Any] | None = None,
    key_gate: bool = False,
    qk_dim: int | None = None,
    positions: PositionMode = "extrapolate",
    layers: Sequence[int] | None = None,
    seed: int = 0,
    images: Tensor | None = None,
) -> PerformerizeReport:
    """Swap the attention of a ViT of timm in place. All weights and their names stay.

    Checkpoints of timm load. With an encoding, a relative bias, a value map, a gate or a `qk_dim`, which have weights
    of their own, they load with `strict=False`. Where an encoding takes the place of a learned rotation in every block,
    timm's, `rope`, is frozen: nothing uses it.

    It takes models whose blocks have timm's `Attention`, `AttentionRope` or `EvaAttention`: ViT, DeiT, DINOv2, DINOv3,
    EVA, SigLIP and RoPE-ViT among them. Position tables that are added to the tokens stay in any case.

    Args:
        model: model from `timm.create_model`.
        attention: name of the attention: `linear`, `softmax` (the control: outputs stay the same up to rounding) or
            `performer-pytorch`.
        feature_map, feature_options: name and options of the feature map of linear attention.
        attention_options: options of an attention of your own.
        encoding: name of a rotating encoding in `ENCODINGS`, for each layer, in place of a rotation of timm's;
            `none` to remove that; None to leave it as it is.
        encoding_options: options of the encoding.
        locality, locality_options: name and options of a relative bias of each layer, or None.
        values, value_options: name and options of a value map of each layer, or None.
        key_gate: whether to weigh each key by its token, learned from equal weights. The outputs stay the same at
            first.
        qk_dim: width of queries and keys; None for timm's. Fixed maps after its projections give the smallest error
            of the scores: by the singular vectors of W_Q^T W_K, or by the strongest planes of its rotation.
        positions: position mode, `extrapolate` or `interpolate`, for an encoding, a relative bias or a value map.
        layers: indices of the blocks to change; None for all.
        seed: seed of the random features, and of the initial weights of encodings, relative biases and value maps.
        images: images to measure the errors on, [B, channels, height, width], normalised; None to measure nothing.

    Returns:
        The error of each layer and of the outputs.

    Raises:
        ImportError: timm is missing.
        ValueError: a part that has no counterpart, by its name, or images of another kind. The model is then as it was.
    """
    check_attention_name(attention)
    indices = check_model(model, layers)
    check_float64("performerize", model)
    check_measured_images(model, images)
    parts = TimmParts(
        attention=attention,
        feature_map=feature_map,
        feature_options=dict(feature_options or {}),
        attention_options=dict(attention_options or {}),
        encoding=encoding,
        encoding_options=dict(encoding_options or {}),
        locality=locality,
        locality_options=dict(locality_options or {}),
        values=values,
        value_options=dict(value_options or {}),
        key_gate=key_gate,
        qk_dim=qk_dim,
        seed=seed,
    )
    parts.check()
    check_position_mode(positions)
    if positions != "extrapolate" and not parts.need_positions():
        raise ValueError(
            f"positions={positions!r} has no effect without an encoding that rotates, a locality or a value map: name "
            f"one, or leave positions out."
        )
    blocks = cast(Any, model).blocks
    grid = grid_of(model, positions) if parts.need_positions() else None
    apply_rope = None if encoding is not None else import_timm().layers.apply_rot_embed_cat
    swaps: dict[int, TimmAttention] = {}
    scores: dict[int, float] = {}
    for layer in indices:
        source = blocks[layer].attn
        swaps[layer] = parts.build(source, layer, grid, apply_rope)
        if qk_dim is not None:
            rotates = apply_rope is not None and getattr(model, "rope", None) is not None
            scores[layer] = narrow_attention(swaps[layer], qk_dim, source.head_dim, rotates, layer)
        swaps[layer].train(source.training)
    hook = None if grid is None else cast(Any, model).patch_embed.register_forward_pre_hook(grid.record)
    try:
        before, errors = measure(model, swaps, images)
        for layer, swap in swaps.items():
            blocks[layer].attn = swap
    except Exception:
        if hook is not None:
            hook.remove()
        raise
    output = None if before is None or images is None else relative_error(outputs(model, images), before)
    layer_errors = (LayerError(f"blocks.{i}.attn", errors.get(i), scores.get(i)) for i in indices)
    rope = getattr(model, "rope", None)
    if encoding is not None and isinstance(rope, nn.Module) and len(indices) == len(blocks):
        rope.requires_grad_(False)
    return PerformerizeReport(tuple(layer_errors), output, undecayed(model, indices))


def undecayed(model: nn.Module, indices: Sequence[int]) -> frozenset[str]:
    """Return the names of the parameters of new parts: encodings, biases, value maps, gates, learned features."""
    new = ("encoding.", "locality.", "values.", "key_gate", "backend.")
    prefixes = tuple(f"blocks.{i}.attn.{part}" for i in indices for part in new)
    return frozenset(name for name, _ in model.named_parameters() if name.startswith(prefixes))


@torch.no_grad()
def measure(
    model: nn.Module, swaps: Mapping[int, TimmAttention], images: Tensor | None
) -> tuple[Tensor | None, dict[int, float]]:
    """Return the outputs of the model, and the error of each new attention on the inputs of the one it replaces."""
    if images is None:
        return None, {}
    errors: dict[int, float] = {}

    def compare(layer: int) -> Any:
        def hook(module: nn.Module, arguments: Any, options: Any, out: Tensor) -> None:
            with evaluation_mode(swaps[layer]):
                errors[layer] = relative_error(swaps[layer](*arguments, **options), out)

        return hook

    with ExitStack() as stack:
        for i in swaps:
            hook = cast(Any, model).blocks[i].attn.register_forward_hook(compare(i), with_kwargs=True)
            stack.callback(hook.remove)
        return outputs(model, images), errors


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor) -> Tensor:
    """Return the outputs of a model in evaluation mode, which is left in the mode it was in."""
    with evaluation_mode(model):
        return cast(Tensor, model(images))


def relative_error(new: Tensor, old: Tensor) -> float:
    """Return |new - old| / |old| of Frobenius norms."""
    new, old = new.double(), old.double()
    return float((new - old).norm() / old.norm().clamp(min=torch.finfo(old.dtype).tiny))
