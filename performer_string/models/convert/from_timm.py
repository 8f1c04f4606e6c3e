"""Vision Transformers of timm, pretrained ones among them, as models of this library with the same outputs."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from performer_string.images.preprocessing import Preprocessing
from performer_string.models.config import ViTConfig
from performer_string.models.convert.timm_attention import TimmAttention
from performer_string.models.vit.model import ViT
from performer_string.utils.dtype import check_float64

TOLERANCE = 1e-6  # relative to the largest output, in float64: rounding to float32 hides another kind of GELU


def from_timm(model: nn.Module) -> ViT:
    """Return a ViT with the weights and outputs of a model of timm, in evaluation mode.

    `VisionTransformer` (ViT, DeiT, DeiT-III, DINOv2, with registers, SigLIP) becomes exact attention with `absolute`
    positions.
    RoPE-ViT (arXiv:2403.13298; timm's `*_rope_mixed_*`) becomes exact attention with `rope-mixed`, and with an
    `absolute_table` where it has absolute positions too. A ViT of the same configuration but for its attention, its
    encoding or its gate takes these weights by `load_state_dict(..., strict=False)`. Under another encoding it keeps
    the table of `absolute` if it has an `absolute_table`.

    Scales of residual branches (LayerScale) are multiplied into the projections before them. At other sizes than that
    of the model, `absolute` interpolates its table linearly by default, where timm resamples it by bicubic splines.

    Args:
        model: model from `timm.create_model`. It is left as it is.

    Returns:
        A ViT of the type of the model's weights.

    Raises:
        TypeError: an argument that is no model, such as its name.
        ValueError: a model with parts that this library's ViT does not have, or with other outputs on a random image
            than the ViT made of it. Such parts are norms of queries and keys or of the pooled tokens, gated MLPs,
            distillation tokens, and attention that `performerize` changed.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"from_timm takes a model, timm.create_model(NAME), not a {type(model).__name__}.")
    if any(isinstance(module, TimmAttention) for module in model.modules()):
        raise ValueError("the attention of this model was changed by performerize: make the ViT before, by from_timm.")
    check_float64("from_timm", model)
    kind, weights = type(model).__name__, {name: x.detach().double() for name, x in model.state_dict().items()}
    try:
        config = config_of(cast(Any, model))
        x_first = config.encoding == "rope-mixed" and cast(Any, model).rope.grid_indexing == "xy"
        with torch.random.fork_rng(devices=[]):
            vit = ViT(config)
        state = translate_weights(weights, config, vit.train_grid, x_first)
    except (AttributeError, KeyError) as error:
        raise ValueError(f"{kind} is not one of the Vision Transformers of timm known here: {error}.") from error
    except ValueError as error:
        raise ValueError(f"{kind} cannot be a ViT of this library: {error}") from None
    if weights:
        raise ValueError(f"{kind} has parts that a ViT of this library has not: {', '.join(sorted(weights))}.")
    vit.to(state["norm.weight"]).load_state_dict(state)
    vit.eval()
    check_same(model, vit)
    pretrained = getattr(model, "pretrained_cfg", None) or {}
    if pretrained.get("mean") and pretrained.get("std"):
        vit.preprocessing = Preprocessing(tuple(pretrained["mean"]), tuple(pretrained["std"]))
    return vit.to(next(model.parameters()).dtype)


def config_of(model: Any) -> ViTConfig:
    """Return the configuration of a model of timm.

    Raises:
        ValueError: a part that a ViT of this library does not have.
    """
    block, patch = model.blocks[0], model.patch_embed
    width, hidden = model.embed_dim, block.mlp.fc1.out_features
    if isinstance(model.norm, nn.Identity):
        raise ValueError("it normalises what is pooled, where a ViT of this library pools what is normalised.")
    pools = {"token": "cls", "avg": "mean", "map": "map"}
    if model.global_pool not in pools:
        raise ValueError(f"pooling {model.global_pool!r} is not one of {', '.join(pools)}.")
    if block.mlp.fc2.in_features != hidden:
        raise ValueError("its MLPs are gated, and those of this library are not.")
    pool = pools[model.global_pool]
    if pool == "map" and model.num_prefix_tokens:
        raise ValueError("its pooling attends to prefix tokens too, where a ViT of this library pools the patches.")
    if pool == "map" and model.attn_pool.mlp.fc1.out_features != hidden:
        raise ValueError("the MLP of its pooling has another width than those of its blocks.")
    has_table, rotates = (getattr(model, name, None) is not None for name in ("pos_embed", "rope"))
    if rotates and getattr(model.rope, "freqs", None) is None:
        raise ValueError(f"of timm's rotations the mixed ones are known, not {type(model.rope).__name__}.")
    # `num_classes` stays as it was where a head was replaced by hand, as in most fine-tuning.
    if not isinstance(model.head, nn.Linear | nn.Identity):
        raise ValueError(f"its head is a {type(model.head).__name__}; a ViT of this library has a Linear one or none.")
    return ViTConfig(
        image_size=list(patch.img_size),
        patch_size=list(patch.patch_size),
        in_channels=patch.proj.in_channels,
        num_classes=model.head.out_features if isinstance(model.head, nn.Linear) else 0,
        width=width,
        depth=len(model.blocks),
        num_heads=block.attn.num_heads,
        mlp_ratio=hidden / width,
        attention="softmax",
        encoding="rope-mixed" if rotates else "absolute" if has_table else "none",
        absolute_table="linear" if rotates and has_table else None,
        pool=cast(Any, pool),
        registers=model.num_prefix_tokens - (pool == "cls"),  # a class token that is not read is one more register
        norm_eps=model.norm.eps,
    )


class Translation:
    """Weights of a model of timm under this library's names.

    Args:
        weights: weights of timm's model, from which everything that is used is removed.
        config: configuration of the ViT.
        grid: number of patches along each axis.
        x_first: whether frequencies along x come before those along y.

    Attributes:
        state: weights that were translated so far, in this library's order.
    """

    def __init__(self, weights: dict[str, Tensor], config: ViTConfig, grid: tuple[int, ...], x_first: bool):
        self.weights, self.config, self.grid, self.x_first = weights, config, grid, x_first
        self.state: dict[str, Tensor] = {}

    def linear(self, name: str, theirs: str, scale: Tensor | None = None) -> None:
        """Translate a linear layer or a convolution over patches; `scale` multiplies its outputs."""
        weight = self.weights.pop(f"{theirs}.weight").flatten(1)  # a convolution's: [D, channels, *patch] -> [D, ..]
        bias = self.weights.pop(f"{theirs}.bias", None)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        self.state[f"{name}.weight"] = weight if scale is None else scale[:, None] * weight
        self.state[f"{name}.bias"] = bias if scale is None else scale * bias

    def norm(self, name: str, theirs: str) -> None:
        """Translate a layer norm."""
        for part in ("weight", "bias"):
            self.state[f"{name}.{part}"] = self.weights.pop(f"{theirs}.{part}")

    def stem(self) -> None:
        """Translate the patch embedding, the prefix tokens and the encoding."""
        self.linear("embed", "patch_embed.proj")
        weights, state, grid = self.weights, self.state, self.grid
        prefix = [weights.pop(name)[0] for name in ("cls_token", "reg_token") if name in weights]  # [., D] each
        count = sum(map(len, prefix))
        if prefix:
            state["prefix"] = torch.cat(prefix)
        if self.config.encoding == "absolute" or self.config.absolute_table is not None:
            table = weights.pop("pos_embed")[0]
            if len(table) == count + grid[0] * grid[1] and count:  # in some models prefix tokens have rows of their own
                state["prefix"], table = state["prefix"] + table[:count], table[count:]
            if len(table) != grid[0] * grid[1]:
                raise ValueError(f"pos_embed has {len(table)} places for {grid[0]} x {grid[1]} patches.")
            owner = "encoding" if self.config.absolute_table is None else "absolute"
            state[f"{owner}.table"] = table.unflatten(0, grid)  # [N, D] -> [h, w, D]
        if self.config.encoding == "rope-mixed":
            omega = weights.pop("rope.freqs")  # [2, layers, H, planes]
            omega = omega.flatten(1, 2).transpose(0, 1)  # [layers H, 2, planes]
            state["encoding.omega"] = omega.flip(1) if self.x_first else omega  # y before x here

    def block(self, block: str) -> None:
        """Translate a block, whose name is the same in both, with its LayerScale in the projections before it."""
        first, second = (
            self.weights.pop(f"{block}.gamma_{i}", self.weights.pop(f"{block}.ls{i}.gamma", None)) for i in (1, 2)
        )
        self.linear(f"{block}.attention.qkv", f"{block}.attn.qkv")
        self.linear(f"{block}.attention.out", f"{block}.attn.proj", first)
        self.linear(f"{block}.mlp.0", f"{block}.mlp.fc1")
        self.linear(f"{block}.mlp.2", f"{block}.mlp.fc2", second)
        for i in (1, 2):
            self.norm(f"{block}.norm{i}", f"{block}.norm{i}")
        if self.config.encoding == "rope-mixed":
            width, heads = cast(int, self.config.width), cast(int, self.config.num_heads)
            for part in ("weight", "bias"):
                name = f"{block}.attention.qkv.{part}"
                self.state[name] = planes_as_halves(self.state[name], heads, width // heads)

    def pool(self) -> None:
        """Translate the pooling by a layer with one query."""
        self.state["pool.query"] = self.weights.pop("attn_pool.latent")[0, 0]  # [1, 1, D] -> [D]
        for name, theirs in {"q": "q", "kv": "kv", "out": "proj", "mlp.0": "mlp.fc1", "mlp.2": "mlp.fc2"}.items():
            self.linear(f"pool.{name}", f"attn_pool.{theirs}")
        self.norm("pool.norm", "attn_pool.norm")


def translate_weights(
    weights: dict[str, Tensor], config: ViTConfig, grid: tuple[int, ...], x_first: bool
) -> dict[str, Tensor]:
    """Return weights under this library's names and in its order; for the arguments see `Translation`."""
    translation = Translation(weights, config, grid, x_first)
    translation.stem()
    for layer in range(cast(int, config.depth)):
        translation.block(f"blocks.{layer}")
    translation.norm("norm", "norm")
    if config.pool == "map":
        translation.pool()
    if config.num_classes:
        translation.linear("head", "head")
    return translation.state


def planes_as_halves(rows: Tensor, heads: int, head_dim: int) -> Tensor:
    """Reorder the rows of the projections, [3 H d, ..]: from planes (2j, 2j + 1) to planes (j, j + d / 2)."""
    parts = rows.unflatten(0, (3, heads, head_dim)).clone()  # [3, H, d, ..]
    order = torch.arange(head_dim, device=rows.device).view(-1, 2).T.flatten()  # 0, 2, .., 1, 3, ..
    parts[:2] = parts[:2, :, order]
    return parts.flatten(0, 2)


@torch.no_grad()
def check_same(model: nn.Module, vit: ViT) -> None:
    """Raise a ValueError where outputs on a random image differ in float64.

    No weight shows the activation or the order of the tokens.
    """
    channels, sizes = vit.config.in_channels, cast(list, vit.config.image_size)
    noise = torch.randn(1, channels, *sizes, generator=torch.Generator().manual_seed(0))
    images = noise.to(vit.norm.weight)
    wanted, got = copy.deepcopy(model).double().eval()(images), vit(images)
    apart = float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))  # a new head may be zero
    if not apart < TOLERANCE:
        raise ValueError(
            f"{type(model).__name__} computes something else than the ViT made of its weights: their outputs on a "
            f"random image differ by {apart:.1e} of the largest. A layer without weights, such as the "
            f"activation, must be another one."
        )
