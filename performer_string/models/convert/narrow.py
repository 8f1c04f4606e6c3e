"""Make the queries and keys of a trained model narrower, for a cheap start of linear attention from its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from performer_string.layers.attention import SelfAttention
from performer_string.layers.values.gating import FiberGating
from performer_string.models.convert.low_rank import Narrowing, by_planes, by_singular_vectors
from performer_string.models.vit.model import ViT
from performer_string.position import SeparableEncoding
from performer_string.utils.dtype import check_float64, without_autocast

# Fields of `ViTConfig` whose change needs no other weights.
CHANGEABLE = ("attention", "feature_map", "feature_options", "key_gate", "log_n_scaling")


@dataclass(frozen=True)
class NarrowReport:
    """Errors of the scores after narrowing. `print(report)` is a table.

    Attributes:
        errors: relative error of the scores of each layer, as `low_rank` defines it.
    """

    errors: tuple[float, ...]

    def __str__(self) -> str:
        return "\n".join(
            ["layer  error of scores", *(f"{i:<5}  {error:>15.2e}" for i, error in enumerate(self.errors))]
        )


@torch.inference_mode(False)  # weights of inference mode could not be trained
@torch.no_grad()
def narrow(model: ViT, qk_dim: int, **changes: Any) -> tuple[ViT, NarrowReport]:
    """Return a copy of a model with narrower queries and keys, in evaluation mode.

    Scores have the smallest error for their width: by the singular vectors of W_Q^T W_K without a rotation, and by the
    strongest planes with one. The new encoding is then `rope-mixed` with their frequencies. At the full width the
    scores are those of the model.

    Args:
        model: model with softmax attention or any other of inner products. It is left as it is.
        qk_dim: width d' of queries and keys, at most the width of the heads; even for encodings that rotate.
        changes: fields of `ViTConfig` that change the attention at the same time: attention="linear",
            feature_map="polynomial", key_gate=True.

    Returns:
        The new model, and the error of each layer.

    Raises:
        TypeError: a model of timm, or another that is no ViT of this library.
        ValueError: a width out of range, a part that has no narrow counterpart, or another field, by its name.
    """
    check_narrow(model, qk_dim)
    check_float64("narrow", model)
    if other := sorted(changes.keys() - set(CHANGEABLE)):
        raise ValueError(
            f"narrow changes how a model attends, by {', '.join(CHANGEABLE)}, and all else follows from the model: "
            f"leave out {', '.join(other)}."
        )
    encoding, attentions = model.encoding, model.attentions()
    changes = {"qk_dim": qk_dim, **changes}
    omega = bases = None
    if isinstance(encoding, SeparableEncoding):
        changes |= {"encoding": "rope-mixed", "encoding_options": {}, "share_layers": False}
        with without_autocast(model.norm.weight):
            omega, basis = encoding.frequencies(), None if encoding.is_folded else encoding.basis()
        layers = len(attentions) // encoding.layers  # layers that share one set of generators
        omega, bases = (None if x is None else by_layer(encoding, x).repeat(layers, 1, 1, 1) for x in (omega, basis))
    with torch.random.fork_rng(devices=[]):
        result = model.rebuilt(replace(model.config, **changes)).to(model.norm.weight).eval()
    rewritten = (".attention.backend.", ".attention.qkv.", *([] if omega is None else ["model.encoding."]))
    state = {
        name: x for name, x in model.state_dict().items() if not any(part in f"model.{name}" for part in rewritten)
    }
    result.load_state_dict(state, strict=False)
    result.preprocessing = model.preprocessing
    errors, frequencies = [], []
    for layer, (old, new) in enumerate(zip(attentions, result.attentions(), strict=True)):
        q, k = projections(old, None if bases is None else bases[layer])
        if omega is None:
            found = by_singular_vectors(q, k, qk_dim)
        else:
            half = omega.shape[-1]
            pairs = torch.arange(half, device=q.device)[:, None] + torch.tensor([0, half], device=q.device)  # [P, 2]
            found = by_planes(q, k, qk_dim, pairs, (omega[layer] != 0).any(1))
            frequencies.append(kept_frequencies(omega[layer], found))
        errors.append(found.error)
        fill(old, new, found, q, k)
    if frequencies:
        result.encoding.get_parameter("omega").copy_(torch.cat(frequencies))
    return result, NarrowReport(tuple(errors))


def check_narrow(model: ViT, qk_dim: int) -> None:
    """Raise an error for a width or a model that `narrow` does not take."""
    if not isinstance(model, ViT):
        raise TypeError(
            f"narrow takes a ViT of this library, not a {type(model).__name__}: from_timm makes one of a model of "
            f"timm, and performerize(model, qk_dim=...) narrows it in place."
        )
    c, encoding = model.config, model.encoding
    if len(model.blocks) != c.depth:
        raise ValueError(f"narrow takes a whole model of {c.depth} blocks; this one has {len(model.blocks)} left.")
    widest = c.query_width
    rotates = not encoding.additive
    if not 0 < qk_dim <= widest or (rotates and qk_dim % 2):
        even = "even, " if rotates else ""
        raise ValueError(f"qk_dim must be {even}positive and at most the present width {widest}, not {qk_dim}.")
    if rotates and (not isinstance(encoding, SeparableEncoding) or getattr(encoding, "log_lambda", None) is not None):
        raise ValueError(
            f"the encoding {c.encoding!r} is no rotation of planes, of which some could be kept: narrow takes models "
            f"with a separable encoding without conformal scaling, or with one that adds to the tokens."
        )
    if c.qk_norm:
        raise ValueError("narrow takes scores that are bilinear forms of the tokens, which qk_norm is not.")
    if any(backend.rotates_features for backend in model.backends()):
        raise ValueError("linear-rotated-features has no rotation of queries and keys, of which planes could be kept.")
    if any(isinstance(part, FiberGating) and part.source == "query" for part in model.modules()):
        raise ValueError(f"the value map {c.values!r} has gates by queries, whose weights have the old width.")
    if not all(attention.is_foldable() for attention in model.attentions()):
        raise ValueError("narrow needs plain projections: merge or remove adapters, pruning, hooks or quantisation.")


def by_layer(encoding: SeparableEncoding, x: Tensor) -> Tensor:
    """Return parameters of heads [heads, ..] for each layer served, [layers, H, ..], in float64."""
    return encoding.all_heads(x).double().unflatten(0, (encoding.layers, encoding.num_heads))


def projections(attention: SelfAttention, basis: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the projections of queries and keys in the basis, the bias as last column: [H, d, D + 1] in float64."""
    count, sizes = 2 * attention.num_heads * attention.qk_dim, (2, attention.num_heads, attention.qk_dim)
    weight, bias = attention.qkv.weight[:count], attention.qkv.bias
    column = weight.new_zeros(count) if bias is None else bias[:count]
    both = torch.cat([weight, column[:, None]], dim=1).double().unflatten(0, sizes)  # [2, H, d, D + 1]
    q, k = both if basis is None else basis.mT @ both
    return q, k


def kept_frequencies(omega: Tensor, found: Narrowing) -> Tensor:
    """Return the frequencies of the planes that stay, zero for unrotated ones: [H, C, P] -> [H, C, P']."""
    assert found.planes is not None
    planes = found.planes.to(omega.device)
    index = planes.clamp(min=0)[:, None].expand(-1, omega.shape[1], -1)
    return omega.gather(-1, index) * (planes >= 0)[:, None]


def fill(old: SelfAttention, new: SelfAttention, found: Narrowing, q: Tensor, k: Tensor) -> None:
    """Write the projections of the new layer, with the difference of the two scales of logits in queries and keys."""
    scales = [each.backend.logit_scale or each.qk_dim**-0.5 for each in (old, new)]
    factor = (scales[0] / scales[1]) ** 0.5
    rows = torch.cat([found.q @ q, found.k @ k]).flatten(0, 1) * factor  # [2 H d', D + 1]
    new.qkv.weight[: len(rows)] = rows[:, :-1].to(new.qkv.weight)
    size = old.num_heads * old.head_dim
    new.qkv.weight[len(rows) :] = old.qkv.weight[-size:]
    if new.qkv.bias is not None:
        new.qkv.bias[: len(rows)] = rows[:, -1].to(new.qkv.bias)
        new.qkv.bias[len(rows) :] = old.qkv.bias[-size:]
