"""A pre-norm Vision Transformer with any encoding and attention, for images, sequences and videos of any size."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from os import PathLike
from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from performer_string.bias import RelativeBias
from performer_string.layers.attention import SelfAttention
from performer_string.layers.backends import AttentionBackend
from performer_string.layers.block import Block, recomputable
from performer_string.layers.pooling import AttentionPool, mean_pool
from performer_string.models.build import build_block, build_position_encoding
from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.ops.layout import TokenLayout, make_grid
from performer_string.ops.validation import check_mask
from performer_string.position.grid import (
    PositionMode,
    as_floating,
    grid_positions,
    grid_steps,
    mean_position,
    with_prefix,
)
from performer_string.position.rotation import Rotation
from performer_string.utils.buffers import place_computed_buffers
from performer_string.utils.cache import TensorCache
from performer_string.utils.renames import rename_weights
from performer_string.utils.seeds import draw_seed, seeded


def check_images(images: Tensor, channels: int, axes: int) -> None:
    """Raise an error unless images are floats [B, channels, *sizes]."""
    if images.ndim != 2 + axes or images.shape[1] != channels:
        sizes = "height, width" if axes == 2 else f"and {axes} sizes"
        raise ValueError(f"images have to be [B, {channels}, {sizes}], not {list(images.shape)}.")
    if not images.is_floating_point():
        raise TypeError(f"images have to be floating-point, normalised as in training, not {images.dtype}.")


class ViT(nn.Module):
    """Images [B, channels, height, width], or [B, channels, *sizes] of other dimensions, to logits [B, classes];
    `ViTConfig` says what can be chosen."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        if not isinstance(config, ViTConfig):
            raise TypeError(f"a ViT is built as ViT(ViTConfig(...)), not from a {type(config).__name__}.")
        c = self.config = copy.deepcopy(config)  # whoever gave it may change theirs
        width, depth, heads = cast(int, c.width), cast(int, c.depth), cast(int, c.num_heads)
        if width % heads:
            raise ValueError(f"the width {width} is not divisible by {heads} heads.")
        self.patch, image_size = patch_and_image(c.patch_size, c.image_size)
        self.train_grid = tuple(c.position_grid) if c.position_grid is not None else self.grid(*image_size)
        self.num_prefix = c.registers + (c.pool == "cls")
        self.grad_checkpointing = False
        # Each component has a stream of random numbers of its own, so that a change of one leaves the initial values of
        # all others as they are. The streams depend on one number of torch's generator, which moves on by that alone.
        stream = draw_seed()
        with seeded(stream):
            self.embed = nn.Linear(c.in_channels * math.prod(self.patch), width)
            self.prefix = nn.Parameter(torch.zeros(self.num_prefix, width)) if self.num_prefix else None
            self.encoding = build_position_encoding(c, self.train_grid, stream)
            self.rotation_cache = TensorCache(2)  # of the latest two grids; LieRE has N x d x d for each layer
            blocks = (build_block(c, layer, self.train_grid, self.num_prefix, stream) for layer in range(depth))
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.LayerNorm(width, c.norm_eps)
            self.pool = AttentionPool(width, heads) if c.pool == "attention" else None
            self.head = nn.Linear(width, c.num_classes) if c.num_classes else nn.Identity()
        self.initialise(stream)
        self.register_load_state_dict_post_hook(place_computed_buffers)
        self.register_load_state_dict_pre_hook(lambda model, state_dict, *_: rename_weights(state_dict))

    @torch.no_grad()
    def initialise(self, stream: int) -> None:
        """Draw the initial weights of linear layers and prefix tokens, each from a stream named after it.

        Args:
            stream: seed of the streams.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                with seeded(stream, name):
                    nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if self.prefix is not None:
            with seeded(stream, "prefix"):
                nn.init.normal_(self.prefix, std=0.02)
        if self.config.mimetic_init:
            for attention in self.attentions():
                attention.tie_keys_to_queries()

    @classmethod
    def from_checkpoint(cls, path: str | PathLike[str]) -> ViT:
        """The model of a checkpoint of `python -m train`, on the CPU and in evaluation mode.

        Raises:
            ValueError: a file of another kind, such as a `state_dict` alone, which does not say what model it is of.
        """
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not {"hyper_parameters", "state_dict"} <= content.keys():
            raise ValueError(
                f"{path} is no checkpoint of `python -m train`: it lacks hyper_parameters or state_dict. Weights alone "
                f"go into a model of the same configuration: ViT(config).load_state_dict(torch.load(path))."
            )
        model = cls(ViTConfig.of_checkpoint(content["hyper_parameters"]["vit"]))
        weights = {name: value for name, value in content["state_dict"].items() if name.startswith("vit.")}
        model.load_state_dict({name.removeprefix("vit."): value for name, value in weights.items()})
        return model.eval()

    def grid(self, *sizes: int) -> tuple[int, ...]:
        """Patches along each axis of an image of these sizes: height and width."""
        if len(sizes) != len(self.patch):
            raise ValueError(f"this model takes images of {len(self.patch)} axes, not {len(sizes)}: {sizes}.")
        if any(size % patch for size, patch in zip(sizes, self.patch, strict=True)):
            near = [max(size // patch, 1) * patch for size, patch in zip(sizes, self.patch, strict=True)]
            given, patches, better = (" x ".join(map(str, each)) for each in (sizes, self.patch, near))
            raise ValueError(
                f"an image of {given} pixels is not divisible into patches of {patches}. Resize it, for example to "
                f"{better}."
            )
        return tuple(size // patch for size, patch in zip(sizes, self.patch, strict=True))

    def placing(self) -> tuple[PositionMode, tuple[int, ...] | None]:
        """How patches are placed, and in which training grid, where that matters."""
        # Where encodings do not extrapolate, a place is a place of the training grid.
        mode: PositionMode = self.config.positions if self.encoding.extrapolates else "interpolate"
        return mode, self.train_grid if mode == "interpolate" else None

    def grid_positions(self, grid: Sequence[int], device: torch.device | None = None) -> Tensor:
        """Positions of the patches of a grid, [N, C], as the configuration and the encoding want them; float32, or
        float64 in a model of it."""
        mode, train_grid = self.placing()
        centred = self.config.centred and self.encoding.extrapolates
        dtype = torch.promote_types(self.norm.weight.dtype, torch.float32)
        return grid_positions(grid, mode=mode, train_grid=train_grid, centred=centred, device=device, dtype=dtype)

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """The rotation of each layer at the positions [N, C] of the patches; prefix tokens stay at the origin."""
        rotations = self.encoding.by_layer(with_prefix(positions, self.num_prefix))
        return rotations * len(self.blocks) if len(rotations) == 1 else rotations

    def grid_rotations(self, grid: tuple[int, ...], positions: Tensor) -> list[Rotation]:
        """Those of a grid, which are kept in evaluation for the latest two."""
        if self.training or torch.is_grad_enabled():
            return self.rotations(positions)
        key = (grid, self.train_grid, positions.device, positions.dtype, self.config.positions, self.config.centred)
        sources = (*self.encoding.parameters(), *self.encoding.buffers())
        return self.rotation_cache.get(key, sources, lambda: self.rotations(positions))

    def patches(self, images: Tensor) -> Tensor:
        """The pixels of each patch: [B, channels, height, width] -> [B, N, channels p q], in any dimension."""
        axes = range(len(self.patch))
        whole, cells, pixels = (" ".join(form.format(i) for i in axes) for form in ("(n{0} p{0})", "n{0}", "p{0}"))
        sizes = {f"p{i}": self.patch[i] for i in axes}
        return rearrange(images, f"b c {whole} -> b ({cells}) (c {pixels})", **sizes)

    def forward_features(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """What the last norm puts out, prefix tokens first: [B, P + N, D]. Arguments as of `forward`."""
        check_images(images, self.config.in_channels, len(self.patch))
        grid = self.grid(*images.shape[2:])
        check_mask("patch", patch_mask, images.shape[0], math.prod(grid))  # not len(): an export is of any batch
        at_grid = positions is None
        if positions is None:
            positions = self.grid_positions(grid, images.device)
        elif tuple(positions.shape[:-1]) not in ((math.prod(grid),), (len(images), math.prod(grid))):
            raise ValueError(
                f"positions have to be [N, C], or [B, N, C] for each of the {len(images)} images, with one row for "
                f"each of the {' x '.join(map(str, grid))} patches, not {list(positions.shape)}."
            )
        layout = self.layout(grid, positions, at_grid, patch_mask)
        patch_positions = layout.centred_positions()[..., self.num_prefix :, :]
        if at_grid and layout.centre is None:
            rotations = self.grid_rotations(grid, patch_positions)
        else:
            rotations = self.rotations(patch_positions)
        x = self.embed(self.patches(images).to(self.norm.weight.dtype))  # [B, N, D]; a host model may have bf16
        embedding = self.encoding.embedding(patch_positions)
        x = x if embedding is None else x + embedding.to(x.dtype)
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)  # [B, P + N, D]
        for block, rotation in zip(self.blocks, rotations, strict=True):
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(recomputable(cast(Block, block)), x, rotation, layout, use_reentrant=False)
            else:
                x = block(x, rotation, layout)
        return cast(Tensor, self.norm(x))

    def layout(
        self, grid: tuple[int, ...], positions: Tensor, at_grid: bool = True, patch_mask: Tensor | None = None
    ) -> TokenLayout:
        """Return where the tokens lie, prefix tokens first.

        Args:
            grid: patches along each axis.
            positions: of the patches, [N, C] or [B, N, C].
            at_grid: these are `grid_positions(grid)`.
            patch_mask: [B, N], True where a patch takes part.
        """
        mask = None if patch_mask is None else F.pad(patch_mask, (self.num_prefix, 0), value=True)
        regular = make_grid(grid, grid_steps(grid, *self.placing())) if at_grid else None
        centre = None
        if self.config.centred and self.encoding.extrapolates and not (at_grid and patch_mask is None):
            positions = as_floating(positions)
            centre = mean_position(positions, patch_mask)  # [1, C], or [B, 1, C]
            if centre.ndim == positions.ndim:  # as many samples as positions: offsets need no others
                positions, centre = positions - centre, None
        return TokenLayout(with_prefix(positions, self.num_prefix), regular, self.num_prefix, mask, centre)

    def forward_head(self, x: Tensor, pre_logits: bool = False, patch_mask: Tensor | None = None) -> Tensor:
        """Logits [B, classes] of `forward_features`' tokens, or, before the head, what is pooled of them: [B, D]."""
        if self.config.pool == "cls":
            pooled = x[:, 0]
        else:
            patches = x[:, self.num_prefix :]
            pooled = (self.pool or mean_pool)(patches, patch_mask)
        return cast(Tensor, pooled if pre_logits else self.head(pooled))

    def forward(self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None) -> Tensor:
        """Logits [B, classes], or pooled features [B, D] where there are no classes.

        Args:
            images: [B, channels, height, width], floats, normalised as in training.
            positions: [N, C], or [B, N, C] for each image, in place of those of the grid; centred as those are where
                the configuration says so, by the mean of the patches that take part.
            patch_mask: [B, N], True where a patch takes part, one of each image at the least; the others, as the
                padding of smaller images in a batch, are no keys and are not pooled. None for all. (`batch_images`
                makes such batches, with the positions of each image.)
        """
        return self.forward_head(self.forward_features(images, positions, patch_mask), patch_mask=patch_mask)

    def patch_features(
        self, images: Tensor, positions: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> Tensor:
        """`forward_features` of the patches in their places, for dense prediction: [B, D, h, w]."""
        x = self.forward_features(images, positions, patch_mask)[:, self.num_prefix :]
        return x.transpose(1, 2).unflatten(2, self.grid(*images.shape[2:]))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block again in the backward pass instead of keeping what it computed (arXiv:1604.06174)."""
        self.grad_checkpointing = enable

    def attentions(self) -> list[SelfAttention]:
        """The attention of each layer."""
        return [cast(Block, block).attention for block in self.blocks]

    def backends(self) -> list[AttentionBackend]:
        """Return the attention backend of each layer."""
        return [attention.backend for attention in self.attentions()]

    def localities(self) -> list[RelativeBias]:
        """The locality of each layer; an empty list where there is none."""
        localities = (attention.locality for attention in self.attentions())
        return [locality for locality in localities if locality is not None]

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay would pull off their meaning: all but weights of linear layers."""
        decayed = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        return {name for name, _ in self.named_parameters() if name not in decayed}

    def redraw(self, step: int) -> None:
        """New random features in every layer, a function of (seed, step) alone."""
        for backend in self.backends():
            backend.redraw(step)
