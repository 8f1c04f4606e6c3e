"""Everything that can be chosen about a ViT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from performer_string.layers.backends import ROTATED_FEATURES, build_attention, check_capable
from performer_string.models.config.field_names import explains_fields, field_hint
from performer_string.models.config.parts import (
    MAX_TEMPERATURE,
    AttentionConfig,
    BiasConfig,
    PositionConfig,
    RegularisationConfig,
    ValuesConfig,
)
from performer_string.models.config.saved_options import without_unused
from performer_string.models.config.sizes import patch_and_image
from performer_string.utils.registry import IMPORTED_FIRST, choose, lookup
from performer_string.utils.renames import current_fields
from performer_string.utils.validation import check_heads, check_positive, check_types, plain

VARIANTS: dict[str, dict[str, int]] = {
    "micro": {"width": 48, "depth": 4, "num_heads": 4},  # small enough for a CPU
    "tiny": {"width": 192, "depth": 12, "num_heads": 3},  # DeiT-Ti, arXiv:2012.12877 table 1
    "small": {"width": 384, "depth": 12, "num_heads": 6},  # DeiT-S, the same
    "base": {"width": 768, "depth": 12, "num_heads": 12},  # ViT-B, arXiv:2010.11929 table 1
    "large": {"width": 1024, "depth": 24, "num_heads": 16},  # ViT-L, the same
}

Pool = Literal["mean", "cls", "attention", "map"]
Head = Literal["class", "dense"]


@explains_fields
@dataclass
class ViTConfig(RegularisationConfig, ValuesConfig, BiasConfig, PositionConfig, AttentionConfig):
    """Everything that defines a ViT: its sizes, and the fields of the parts above, all in one flat namespace.

    Attributes:
        image_size: size of training images in pixels, a number or [height, width], or one for each axis of sequences,
            volumes or videos; other sizes work later.
        patch_size: size of a patch in pixels, a number or one for each axis.
        in_channels: number of channels of the images.
        num_classes: number of classes of the head; 0 for no head, which leaves the pooled features.
        variant: name of a size (micro, tiny, small, base or large), for those of width, depth and num_heads that are
            not given; tiny by default. It is None once it has filled them in. Sizes that are all those of another
            variant count as not given, so that `dataclasses.replace(config, variant=...)` works.
        width: width D of the tokens.
        depth: number of blocks.
        num_heads: number H of heads.
        mlp_ratio: ratio of the MLP's hidden width to D.
        layer_scale: value at which learned factors of each block's branches start (LayerScale, arXiv:2103.17239), such
            as 1e-4; None for no factors.
        pool: pooling: `mean` over the patches, a `cls` token, or `attention` over the patches with learned queries.
            `map` is a whole layer with one learned query, as in SigLIP.
        registers: number of register tokens (arXiv:2309.16588).
        head: kind of head: `class` for one class of each image, `dense` for a class of each pixel, from
            `patch_features`.
        patch_norm: whether there are layer norms before and after the embedding of the patches (arXiv:2302.01327), so
            that neither brightness nor contrast of a patch matters.
        mask_blank_patches: whether patches of one colour are no keys and are not pooled, as if they were padding. Then
            blank margins change no logits, and nothing is computed for them in a list of images. See
            docs/concepts/resolution.md.
    """

    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    in_channels: int = 3
    num_classes: int = 1000
    variant: str | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float = 4.0
    layer_scale: float | None = None
    pool: Pool = "mean"
    registers: int = 0
    head: Head = "class"
    patch_norm: bool = False
    mask_blank_patches: bool = False

    @property
    def query_width(self) -> int:
        """Width of a head's queries and keys: `qk_dim`, or that of the values."""
        return cast(int, self.width) // cast(int, self.num_heads) if self.qk_dim is None else self.qk_dim

    @classmethod
    def of_checkpoint(cls, saved: Mapping[str, Any], **overrides: Any) -> ViTConfig:
        """Return the configuration in a checkpoint, under current names and without options that have no effect.

        Args:
            saved: fields of the checkpoint, which hold the sizes whatever variant they come from.
            overrides: fields that replace those of the checkpoint.

        Raises:
            ValueError: a field that this version does not have; a user's own part whose module is not imported.
        """
        known = {each.name for each in fields(cls)}
        content = {**current_fields(saved), "variant": None, **overrides}
        for name in content:
            if name not in known:
                raise ValueError(
                    f"the checkpoint has a field {name!r} of ViTConfig, which this version does not have."
                    f"{field_hint(name, known)} Load it with the version that wrote it."
                )
        content = without_unused(content)
        bound = content.pop("max_temperature", MAX_TEMPERATURE)
        try:
            config = cls(**content)
        except ValueError as error:
            if not str(error).startswith("unknown "):
                raise
            raise ValueError(f"{error} {IMPORTED_FIRST}.") from None
        used = bound != MAX_TEMPERATURE and config.has_temperature()
        return replace(config, max_temperature=bound) if used else config

    def has_temperature(self) -> bool:
        """Return whether a layer has a learned temperature."""
        options = {"feature_map": self.feature_map, "seed": self.seed, "feature_options": self.feature_options}

        def has(name: str) -> bool:
            own = self.options_of(name)
            backend = build_attention(
                name, head_dim=self.query_width, num_heads=1, attention_options=own, **cast(Any, options)
            )
            return not backend.homogeneous

        return self.qk_norm and any(map(has, self.kinds_of_attention()))

    def __post_init__(self) -> None:
        for each in fields(self):
            setattr(self, each.name, plain(getattr(self, each.name)))
        check_types(self)
        self.fill_in_sizes()
        check_heads(cast(int, self.width), cast(int, self.num_heads))
        for name in ("depth", "in_channels", "mlp_ratio"):
            check_positive(name, getattr(self, name))
        for name in ("registers", "num_classes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}.")
        if self.layer_scale is not None:
            check_positive("layer_scale", self.layer_scale)
        choose("pooling", self.pool, Pool)
        choose("head", self.head, Head)
        if self.head == "dense" and self.pool in ("attention", "map"):
            raise ValueError(f"a dense head pools nothing: leave out pool={self.pool!r}.")
        self.check_attention()
        if not isinstance(self.attention, str) and len(self.attention) != self.depth:
            raise ValueError(
                f"attention must be one name, or one for each of the {self.depth} layers, not {len(self.attention)}: "
                f"{self.attention}."
            )
        self.check_position(len(patch_and_image(self.patch_size, self.image_size)[0]))
        if self.max_temperature != MAX_TEMPERATURE and not self.has_temperature():
            reason = "a homogeneous feature map" if self.qk_norm else "qk_norm=False"
            raise ValueError(
                f"max_temperature={self.max_temperature} has no effect with {reason}, which has no temperature: leave "
                f"it out, or set qk_norm with softmax or another feature map."
            )
        self.check_bias()
        self.check_values()
        self.check_regularisation()
        kinds = self.kinds_of_attention()
        if ROTATED_FEATURES in kinds and len(kinds) > 1:
            raise ValueError(
                f"{ROTATED_FEATURES} rotates vectors of another width than {', '.join(kinds)} do: give all layers the "
                f"same attention."
            )
        wanted = {"locality": self.locality is not None, "key_gate": self.key_gate, "key mask": self.mask_blank_patches}
        for name in kinds:
            check_capable(name, wanted)

    def fill_in_sizes(self) -> None:
        """Take width, depth and num_heads from the variant where they are not given."""
        variant_sizes = lookup("ViT variant", self.variant or "tiny", VARIANTS)
        sizes = {name: getattr(self, name) for name in variant_sizes}
        if self.variant is not None and None not in sizes.values():
            if sizes not in VARIANTS.values():
                raise ValueError(
                    f"the variant {self.variant!r} has no effect, since width, depth and num_heads are all given ("
                    f"{', '.join(map(str, sizes.values()))}): leave it out, or make one of them null."
                )
            sizes = dict.fromkeys(sizes)
        for name, size in variant_sizes.items():
            setattr(self, name, size if sizes[name] is None else sizes[name])
        self.variant = None
