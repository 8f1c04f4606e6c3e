"""Build the embedding, the encoding and the blocks of a model from its configuration."""

from __future__ import annotations

import math
from typing import cast

from torch import nn

from performer_string.bias import RelativeBias, build_locality
from performer_string.feature_maps import build_feature_map
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import ROTATED_FEATURES, AttentionBackend, build_attention
from performer_string.layers.block import Block
from performer_string.layers.patch_embedding import NormalisedEmbedding
from performer_string.layers.values import ValueMap, build_value_map
from performer_string.models.config import ViTConfig
from performer_string.models.config.parts import AttentionConfig, BiasConfig, ValuesConfig
from performer_string.position import ENCODINGS, Encoding, Sizes, build_encoding
from performer_string.position.additive import Absolute
from performer_string.utils.seeds import derive_seed, seeded


def build_patch_embedding(config: ViTConfig, pixels: int, width: int) -> nn.Linear:
    """Build the embedding of patches of this many values, which has norms of its own with `patch_norm`."""
    return NormalisedEmbedding(pixels, width, config.norm_eps) if config.patch_norm else nn.Linear(pixels, width)


def build_position_encoding(config: ViTConfig, grid: tuple[int, ...], stream: int) -> Encoding:
    """Build the encoding, with generators of its own for each layer unless nothing is learned or layers share them.

    Args:
        config: configuration of the model.
        grid: number of patches along each axis of a training image.
        stream: seed of the initial values.
    """
    heads = cast(int, config.num_heads)
    additive, rotated_width = ENCODINGS[config.encoding].additive, config.query_width
    if ROTATED_FEATURES in config.kinds_of_attention():
        phi = build_feature_map(config.feature_map, head_dim=rotated_width, num_heads=heads, **config.feature_options)
        rotated_width = phi.num_features

    raster = config.position_unit == "raster"

    def build(layers: int) -> Encoding:
        with seeded(stream, "encoding"):
            return build_encoding(
                config.encoding,
                head_dim=cast(int, config.width) // heads if additive else rotated_width,
                qk_dim=rotated_width,
                num_heads=heads,
                coord_dim=1 if raster else len(grid),
                grid=(math.prod(grid),) if raster else grid,
                layers=layers,
                **config.encoding_options,
            )

    if config.share_layers or additive:
        return check_position_unit(config, build(1))
    encoding = build(cast(int, config.depth))
    learned = any(p.requires_grad for p in encoding.parameters())
    return check_position_unit(config, encoding if learned else build(1))  # without parameters it is quick to compute


def build_absolute(config: ViTConfig, grid: tuple[int, ...], stream: int) -> Absolute | None:
    """Build the learned table beside the encoding, or None; for the arguments see `build_position_encoding`."""
    if config.absolute_table is None:
        return None
    heads = cast(int, config.num_heads)
    sizes = Sizes(cast(int, config.width) // heads, heads, len(grid), grid)
    with seeded(stream, "absolute"):
        return Absolute(sizes, interpolation=config.absolute_table)


def check_position_unit(config: ViTConfig, encoding: Encoding) -> Encoding:
    """Return the encoding.

    Raises:
        ValueError: positions in images where the encoding needs them in patches.
    """
    if config.position_unit == "patch":
        return encoding
    if encoding.counts_patches and not (config.position_unit == "raster" and encoding.extrapolates):
        raise ValueError(f"{config.encoding} with these options counts patches: position_unit must be patch.")
    return encoding


def build_backend(config: AttentionConfig, sizes: Sizes, layer: int, seed: int, stream: int) -> AttentionBackend:
    """Build the attention backend of a layer.

    Args:
        config: configuration of attention.
        sizes: sizes of a head, and their number.
        layer: index of the block, from 0.
        seed: seed of the random features, of which each layer has its own.
        stream: seed of the initial values.
    """
    name = config.attention_of(layer)
    with seeded(stream, "attention", layer):
        return build_attention(
            name,
            head_dim=sizes.qk_dim or sizes.head_dim,
            num_heads=sizes.num_heads,
            feature_map=config.feature_map,
            seed=derive_seed(seed, "features", layer),
            feature_options=config.feature_options,
            attention_options=config.options_of(name),
        )


def build_layer_bias(config: BiasConfig, sizes: Sizes, layer: int, stream: int) -> RelativeBias | None:
    """Build the relative bias of a layer, or None; `stream` is the seed of the initial values."""
    if config.locality is None:
        return None
    with seeded(stream, "locality", layer):
        return build_locality(config.locality, num_heads=sizes.num_heads, grid=sizes.grid, **config.locality_options)


def build_layer_values(config: ValuesConfig, sizes: Sizes, layer: int, stream: int) -> ValueMap | None:
    """Build the value map of a layer, or None; `stream` is the seed of the initial values."""
    if config.values is None:
        return None
    with seeded(stream, "values", layer):
        return build_value_map(
            config.values,
            head_dim=sizes.head_dim,
            num_heads=sizes.num_heads,
            coord_dim=sizes.coord_dim,
            grid=sizes.grid,
            qk_dim=sizes.qk_dim,
            **config.value_options,
        )


def build_block(config: ViTConfig, layer: int, grid: tuple[int, ...], num_prefix: int, stream: int) -> Block:
    """Build a block, with random features of its own.

    Args:
        config: configuration of the model.
        layer: index of the block, from 0.
        grid: number of patches along each axis of a training image.
        num_prefix: number of tokens without a position.
        stream: seed of the initial values.

    Raises:
        ValueError: positions in images where the value map needs them in patches.
    """
    c, width, depth, heads = config, cast(int, config.width), cast(int, config.depth), cast(int, config.num_heads)
    sizes = Sizes(width // heads, heads, len(grid), grid, qk_dim=c.query_width)
    backend = build_backend(c, sizes, layer, c.seed, stream)
    locality = build_layer_bias(c, sizes, layer, stream)
    values = build_layer_values(c, sizes, layer, stream)
    if values is not None and values.counts_patches and c.position_unit != "patch":
        raise ValueError(f"the value map {c.values} takes positions in patches: position_unit must be patch.")
    scales_logits = c.log_n_scaling and not (backend.homogeneous and "softmax" in c.kinds_of_attention())
    attention = SelfAttention(
        width,
        heads,
        backend,
        qk_norm=c.qk_norm,
        max_temperature=c.max_temperature,
        log_n_scaling=math.prod(grid) + num_prefix if scales_logits else None,
        key_gate=c.key_gate,
        qkv_bias=c.qkv_bias,
        qk_dim=c.qk_dim,
        locality=locality,
        values=values,
    )
    drop_path = c.drop_path * (layer / (depth - 1) if depth > 1 else 1.0)
    return Block(attention, width, c.mlp_ratio, drop_path, c.norm_eps, c.dropout, c.layer_scale)
