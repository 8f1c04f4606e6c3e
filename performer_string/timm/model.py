"""A ViT with the interface that timm expects of its models."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from timm.models import PretrainedCfg
from torch import Tensor, nn

from performer_string.images.preprocessing import Preprocessing
from performer_string.layers.dense_head import build_head
from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.models.vit.intermediate import block_indices, block_outputs
from performer_string.models.vit.model import STEM, ViT
from performer_string.timm.names import POOLS, own_weights, pool_of

log = logging.getLogger(__name__)

WITH_PREVIOUS = 99999  # timm's number for parameters that join the group before them


class TimmViT(ViT):
    """A ViT with timm's attributes and methods. Weights have the names of a ViT and load into either.

    Args:
        config: configuration of a `ViT`.
        drop_rate: rate of dropout before the head.
        global_pool: name of the pooling; `""` for none, so that `forward_head` classifies each token; None for the
            configuration's.
    """

    def __init__(self, config: ViTConfig, *, drop_rate: float = 0.0, global_pool: str | None = None):
        super().__init__(config)
        c = self.config
        if drop_rate and c.head == "dense":
            raise ValueError(f"drop_rate={drop_rate} is of dropout before a head for whole images: leave it out.")
        self.num_classes, self.in_chans = c.num_classes, c.in_channels
        names = {ours: theirs for theirs, ours in POOLS.items()}
        self.global_pool = names.get(c.pool, c.pool) if global_pool is None else global_pool
        self.embed_dim = self.num_features = self.head_hidden_size = cast(int, c.width)
        self.num_prefix_tokens = self.num_prefix
        self.head_drop = nn.Dropout(drop_rate)
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": self.embed_dim, "reduction": max(self.patch)}
            for i in range(len(self.blocks))
        ]

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Normalisation of the images: what was set or loaded, else the mean and deviation of timm's configuration."""
        own = cast("Preprocessing | None", vars(self).get("_preprocessing"))
        described = vars(self).get("pretrained_cfg") or {}  # from `timm.create_model`
        if own is not None or len(described.get("mean") or ()) != self.in_chans:
            return own
        return Preprocessing(described["mean"], described["std"], tuple(described.get("label_names") or ()))

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        """Set it in timm's configuration as well, from which `timm.data.resolve_model_data_config` reads it."""
        vars(self)["_preprocessing"] = value
        if value is None:
            return
        size = patch_and_image(self.config.patch_size, self.config.image_size)[1]
        known = {"mean": value.mean, "std": value.std, "num_classes": self.num_classes, "crop_pct": 1.0}
        known |= {"input_size": (self.in_chans, *size), "interpolation": "bilinear"}
        described = vars(self).get("pretrained_cfg") or PretrainedCfg().to_dict()
        self.pretrained_cfg = self.default_cfg = {**described, **known, "label_names": value.classes or None}

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        """Load weights, also those of a run, as `checkpoint_path` of `timm.create_model` gives them."""
        weights = own_weights(state_dict)
        if weights.keys() != state_dict.keys():
            log.warning(
                "these weights of a run come without mean and std of its images: pretrained=True, "
                'pretrained_cfg_overlay={"file": FILE} of timm.create_model takes them too.'
            )
        return super().load_state_dict(weights, *arguments, **options)

    def forward_head(self, x: Tensor, pre_logits: bool = False, patch_mask: Tensor | None = None) -> Tensor:
        """Pool the tokens of `forward_features` where the model pools, apply dropout and classify."""
        if self.config.head == "dense":
            return super().forward_head(x, pre_logits, patch_mask)
        pooled = self.head_drop(super().forward_head(x, True, patch_mask) if self.global_pool else x)
        return pooled if pre_logits else cast(Tensor, self.head(pooled))

    def rebuilt(self, config: ViTConfig) -> TimmViT:
        """Return a new model with another configuration, and the dropout and pooling of this one."""
        return type(self)(config, drop_rate=self.head_drop.p, global_pool=self.global_pool)

    def save_pretrained(self, *arguments: Any, **options: Any) -> Path:
        """Do as `ViT.save_pretrained`, without `drop_rate`; raise a ValueError for a model that does not pool."""
        if self.global_pool == "":
            raise ValueError(
                'a model of timm without pooling (global_pool="") is not saved, since its configuration has one: call '
                "reset_classifier(0, POOLING) before."
            )
        return super().save_pretrained(*arguments, **options)

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one.

        Args:
            num_classes: number of classes of the new head; 0 for none.
            global_pool: `""` for no pooling, or the pooling that the model was built with; None leaves it as it is.

        Raises:
            ValueError: a negative number of classes; another pooling, which has other weights.
        """
        if num_classes < 0:
            raise ValueError(f"num_classes must be 0 or more, not {num_classes}.")
        if global_pool is not None:
            if global_pool and pool_of(global_pool) != self.config.pool:
                raise ValueError(
                    f"this model was built to pool by {self.config.pool!r}, and {global_pool!r} needs other weights: "
                    f"give global_pool={global_pool!r} to timm.create_model."
                )
            self.global_pool = global_pool
        self.num_classes = self.config.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            head = build_head(self.config.head, self.embed_dim, num_classes, self.patch)
            for linear in (module for module in head.modules() if isinstance(module, nn.Linear)):
                nn.init.trunc_normal_(linear.weight, std=0.02)
                nn.init.zeros_(linear.bias)
            self.head = head.to(self.norm.weight)

    def set_input_size(self, img_size: int | Sequence[int] | None = None, patch_size: Any = None) -> None:
        """Set another image size. Positions and log N stay those of the training grid, as the weights need them.

        The model takes images of any size in whole patches in any case.

        Raises:
            ValueError: sizes that the patches do not divide; another patch size, which has other weights.
        """
        if patch_size is not None and patch_and_image(patch_size, [1] * len(self.patch))[0] != self.patch:
            raise ValueError(
                f"the patches of this model are {' x '.join(map(str, self.patch))}, and others need other weights: "
                f"give patch_size={patch_size} to timm.create_model."
            )
        if img_size is None:
            return
        _, size = patch_and_image(list(self.patch), img_size if isinstance(img_size, int) else list(img_size))
        self.grid(*size)
        self.config.image_size, self.config.position_grid = list(size), list(self.train_grid)
        traits = cast(dict[str, Any] | None, getattr(self, "_traits", None))  # timm's note of the current size
        if traits is not None:
            traits["img_size"] = tuple(size)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's groups of parameters, for layer-wise decay of the learning rate.

        Learned frequencies of the encoding serve all layers. They are with the head, and have the full learning rate.
        """
        blocks = [(r"^blocks\.(\d+)", None), (r"^norm", (WITH_PREVIOUS,))]
        return {"stem": rf"^{STEM}", "blocks": r"^blocks\.(\d+)" if coarse else blocks}

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: None = None,
    ) -> Any:
        """Return the outputs of blocks, as timm's method of this name does.

        Args:
            x: input images, [B, channels, height, width].
            indices: blocks whose outputs are returned: the last n for a number, all for None, or their indices.
            return_prefix_tokens: whether to return pairs of patches and prefix tokens.
            norm: whether to apply the last norm to each.
            stop_early: whether to stop after the last block that is asked for.
            output_fmt: format of the outputs: `NCHW` for maps [B, D, h, w], or `NLC` for tokens [B, N, D].
            intermediates_only: whether to leave out the final features.
            output_dict: whether to return a dictionary with timm's keys.
            attn_mask: mask of pairs of tokens, which is not supported.

        Returns:
            Final features [B, P + N, D] and the list of intermediates; the list alone; or a dictionary.

        Raises:
            ValueError: a format or a mask that is not supported.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be NCHW or NLC, not {output_fmt!r}.")
        if attn_mask is not None:
            raise ValueError("attn_mask: linear attention has no weights to mask. Use forward(images, patch_mask=...).")
        wanted = block_indices(len(self.blocks) if indices is None else indices, len(self.blocks))
        grid, prefix = self.grid(*x.shape[2:]), self.num_prefix
        tokens, taken = block_outputs(self, x, wanted, wanted[-1] if stop_early else len(self.blocks) - 1, norm)
        patches = [each[:, prefix:] for each in taken]
        if output_fmt == "NCHW":
            patches = [each.transpose(1, 2).unflatten(2, grid).contiguous() for each in patches]
        firsts = [each[:, :prefix] for each in taken] if prefix and return_prefix_tokens else None
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": patches}
            if firsts is not None:
                result["image_intermediates_prefix"] = firsts
            return result if intermediates_only else {**result, "image_features": self.norm(tokens)}
        found: list[Any] = patches if firsts is None else list(zip(patches, firsts, strict=True))
        return found if intermediates_only else (self.norm(tokens), found)

    def get_intermediate_layers(  # type: ignore[override]  # timm has another signature than DINOv2
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        attn_mask: None = None,
    ) -> Any:
        """Return the outputs of several blocks, as timm's method of this name; without the last norm unless asked for.

        A `ViT` has DINOv2's method, which applies it by default. Arguments are those of `forward_intermediates`;
        `reshape` gives maps [B, D, h, w] in place of tokens [B, N, D].
        """
        form = "NCHW" if reshape else "NLC"
        return self.forward_intermediates(x, n, return_prefix_tokens, norm, False, form, True, attn_mask=attn_mask)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the blocks after the last one asked for and, if wanted, the head. The norm is frozen, not removed.

        Returns:
            Indices of the blocks asked for.
        """
        wanted = block_indices(len(self.blocks) if indices is None else indices, len(self.blocks))
        self.blocks = self.blocks[: wanted[-1] + 1]
        if prune_norm:
            self.norm.requires_grad_(False)  # its type is that of the model
        if prune_head:
            self.reset_classifier(0, "")
        return wanted
