"""A pre-norm Vision Transformer with any encoding and attention, for images, sequences and videos of any size."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from performer_string.bias import RelativeBias
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import AttentionBackend
from performer_string.layers.block import Block, mlp_width, recomputable
from performer_string.layers.dense_head import DenseHead, build_head
from performer_string.layers.pooling import build_pool, mean_pool
from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.models.files.saving import Saved
from performer_string.models.vit.build import (
    build_absolute,
    build_block,
    build_patch_embedding,
    build_position_encoding,
)
from performer_string.models.vit.initialise import initialise
from performer_string.models.vit.intermediate import IntermediateLayers
from performer_string.models.vit.packing import forward_packed
from performer_string.models.vit.patches import check_images, check_patch_positions, embed_patches, patchify
from performer_string.models.vit.positions import TokenPositions
from performer_string.models.vit.preprocessed import Preprocessed
from performer_string.ops.layout import TokenLayout
from performer_string.ops.validation import check_mask
from performer_string.position.rotation import Rotation
from performer_string.utils.buffers import place_computed_buffers
from performer_string.utils.cache import TensorCache
from performer_string.utils.renames import rename_table, rename_weights, unwrap_weights
from performer_string.utils.seeds import draw_seed, seeded

STEM = r"(?:embed|prefix|\w+\.table)"  # beginnings of the names of weights before the first block


def _rename_weights(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load weights under former names, or of a wrapped model; at the top level, so that a model can be pickled."""
    rename_weights(state_dict)
    unwrap_weights(state_dict, prefix, lambda: model.state_dict().keys())
    rename_table(state_dict, prefix, beside=cast(ViT, model).absolute is not None)


class ViT(Saved, Preprocessed, TokenPositions, IntermediateLayers, nn.Module):
    """Vision Transformer: images [B, channels, *sizes] to logits [B, classes].

    Args:
        config: configuration of the model.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        if not isinstance(config, ViTConfig):
            raise TypeError(f"a ViT is built as ViT(ViTConfig(...)), not from a {type(config).__name__}.")
        c = self.config = copy.deepcopy(config)  # the caller may change theirs
        width, depth, heads = cast(int, c.width), cast(int, c.depth), cast(int, c.num_heads)
        self.patch, image_size = patch_and_image(c.patch_size, c.image_size)
        self.train_grid = tuple(c.position_grid) if c.position_grid is not None else self.grid(*image_size)
        self.num_prefix = c.registers + (c.pool == "cls")
        self.grad_checkpointing = False
        self.rotation_cache = TensorCache(2)  # for the latest two grids; LieRE has N x d x d numbers per layer
        stream = draw_seed()
        with seeded(stream):  # the global generator draws one number, in `draw_seed`, for any model
            self.embed = build_patch_embedding(c, c.in_channels * math.prod(self.patch), width)
            self.prefix = nn.Parameter(torch.zeros(self.num_prefix, width)) if self.num_prefix else None
            self.embed_dropout = nn.Dropout(c.dropout) if c.dropout else nn.Identity()
            self.encoding = build_position_encoding(c, self.train_grid, stream)
            self.absolute = build_absolute(c, self.train_grid, stream)
            grid, prefix = self.train_grid, self.num_prefix
            self.blocks = nn.ModuleList(build_block(c, layer, grid, prefix, stream) for layer in range(depth))
            self.norm = nn.LayerNorm(width, c.norm_eps)
            self.pool = build_pool(c.pool, width, heads, mlp_width(width, c.mlp_ratio), c.norm_eps)
            self.head = build_head(c.head, width, c.num_classes, self.patch)
        initialise(self, stream)
        self.register_load_state_dict_post_hook(place_computed_buffers)
        self.register_load_state_dict_pre_hook(_rename_weights)

    @contextmanager
    def cached(self) -> Iterator[ViT]:
        """Compute rotations and folded projections once for all forward passes within the context.

        For inference: `with model.cached(), torch.no_grad(): ...`. The weights must stay as they are meanwhile. A
        forward pass with gradients computes everything itself. `fold(model)` has a similar effect for good.

        Raises:
            RuntimeError: a model in training mode.
        """
        if self.training:
            raise RuntimeError("cached() is for inference: call model.eval() before.")
        every = [self.rotation_cache, *(attention.cache for attention in self.attentions())]
        caches = [cache for cache in every if not cache.is_on]  # an enclosing context has switched on the others
        for cache in caches:
            cache.switch(True)
        try:
            yield self
        finally:
            for cache in caches:
                cache.switch(False)

    def forward(
        self, images: Tensor | Sequence[Tensor], positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, classes], or pooled features [B, D] where there are no classes.

        With `head: dense` they are the logits of each pixel, [B, classes, height, width].

        Args:
            images: input images, floats [B, channels, height, width], normalised as in training. A list of images
                [channels, height, width] of any sizes is packed without padding, nor blank patches that are masked
                (`forward_packed`).
            positions: positions of the patches, [N, C], or [B, N, C] for each image, in place of those of the grid.
                They are centred where the configuration says so, by the mean of the patches that take part. A table
                beside the encoding takes them where its positions are the same, and those of the grid elsewhere.
                If they form no regular grid, a convolution over neighbours (`lepe`) has the image's own grid.
            patch_mask: mask of the patches, [B, N], True for patches to attend to, one of each image at least. The
                others, as the padding of smaller images in a batch, are no keys and are not pooled. None for all.
                `batch_images` makes such batches, with the positions of each image.
        """
        if self.config.head == "dense":
            return self.forward_dense(images, positions, patch_mask)
        if isinstance(images, Tensor):
            x, layout = self.encode(images, positions, patch_mask)
            return self.forward_head(x, patch_mask=layout.patch_mask)
        return forward_packed(self, images, positions, patch_mask)

    def forward_features(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of the last norm, prefix tokens first: [B, P + N, D]. For the arguments see `forward`."""
        return self.encode(images, positions, patch_mask)[0]

    def encode(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> tuple[Tensor, TokenLayout]:
        """Return `forward_features`, and the layout of its tokens."""
        x, rotations, layout = self.stem(images, positions, patch_mask)
        for block, rotation in zip(self.blocks, rotations, strict=True):
            x = self.apply_block(block, x, rotation, layout)
        return cast(Tensor, self.norm(x)), layout

    def stem(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> tuple[Tensor, list[Rotation | None], TokenLayout]:
        """Return the inputs of the blocks: tokens [B, P + N, D], each layer's rotation, and the layout of the
        tokens."""
        check_images(images, self.config.in_channels, len(self.patch))
        grid = self.grid(*images.shape[2:])
        check_mask("patch", patch_mask, images.shape[0], math.prod(grid))  # not len(): an export is for any batch
        check_patch_positions(positions, images.shape[0], grid)
        patch_mask = self.participating(images, patch_mask)
        layout = self.layout(grid, positions, patch_mask)
        pixels = patchify(images, self.patch).to(self.norm.weight.dtype)  # [B, N, pixels]; the model may be in bf16
        if patch_mask is not None:  # padding may hold anything, NaN too, which no weight of zero would remove
            pixels = pixels.masked_fill(~patch_mask[..., None], 0.0)
        centred = layout.centred_positions()[..., self.num_prefix :, :]
        x = embed_patches(self, pixels, centred, self.table_positions(grid, positions))
        if positions is None and layout.centre is None:
            return x, self.rotation_cache.get((grid, x.device, x.dtype), lambda: self.rotations(layout)), layout
        return x, self.rotations(layout), layout

    def apply_block(self, block: nn.Module, x: Tensor, rotation: Rotation | None, layout: TokenLayout) -> Tensor:
        """Return the outputs of a block, which gradient checkpointing computes again in the backward pass."""
        if not (self.grad_checkpointing and torch.is_grad_enabled()):
            return cast(Tensor, block(x, rotation, layout))
        return checkpoint(recomputable(cast(Block, block)), x, rotation, layout, use_reentrant=False)

    def forward_head(self, x: Tensor, pre_logits: bool = False, patch_mask: Tensor | None = None) -> Tensor:
        """Pool the tokens of `forward_features` and classify.

        Args:
            x: tokens, [B, P + N, D].
            pre_logits: whether to return what is pooled, [B, D], instead of logits [B, classes].
            patch_mask: mask of the patches, [B, N], as `participating` returns it.

        Raises:
            ValueError: a dense head, which needs the grid of the patches.
        """
        if self.config.head == "dense" and not pre_logits:
            raise ValueError("forward_head is for one class of each image: call a model with a dense head itself.")
        pool = self.pool or mean_pool
        pooled = x[:, 0] if self.config.pool == "cls" else pool(x[:, self.num_prefix :], patch_mask)
        return cast(Tensor, pooled if pre_logits else self.head(pooled))

    @property
    def train_image_size(self) -> tuple[int, ...]:
        """Size of the images that the model is trained on, in pixels: (frames,) height, width."""
        return tuple(n * p for n, p in zip(self.train_grid, self.patch, strict=True))

    def patch_features(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """Return `forward_features` of the patches as a map for dense prediction, [B, D, h, w]."""
        x = self.forward_features(images, positions, patch_mask)[:, self.num_prefix :]
        return x.transpose(1, 2).unflatten(2, self.grid(*images.shape[2:]))

    def forward_dense(
        self, images: Tensor | Sequence[Tensor], positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of each pixel, [B, classes, height, width]. Arguments: see `forward`, without lists."""
        if not isinstance(images, Tensor):
            raise ValueError("a model with a dense head takes a batch, not a list of images: batch_images makes one.")
        features = self.patch_features(images, positions, patch_mask)  # [B, D, h, w]
        if patch_mask is None:
            return cast(Tensor, self.head(features))
        return cast(DenseHead, self.head).forward_padded(features, patch_mask.unflatten(1, features.shape[2:]))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block again in the backward pass instead of saving its tensors (arXiv:1604.06174)."""
        self.grad_checkpointing = enable

    def attentions(self) -> list[SelfAttention]:
        """Return the attention of each layer."""
        return [cast(Block, block).attention for block in self.blocks]

    def backends(self) -> list[AttentionBackend]:
        """Return the attention backend of each layer."""
        return [attention.backend for attention in self.attentions()]

    def localities(self) -> list[RelativeBias]:
        """Return the relative bias of each layer; an empty list where there is none."""
        return [each.locality for each in self.attentions() if each.locality is not None]

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: all but the weights of linear layers."""
        linear = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        wrapped = re.compile(r"parametrizations\.(\w+)\.original\d*$")  # of spectral_norm and the like
        return {name for name, _ in self.named_parameters() if wrapped.sub(r"\1", name) not in linear}

    def redraw(self, step: int) -> None:
        """Draw new random features in every layer, a function of (seed, step) alone."""
        for backend in self.backends():
            backend.redraw(step)
