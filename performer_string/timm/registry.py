"""The models that `timm.create_model` knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from performer_string.models.config import VARIANTS, ViTConfig
from performer_string.models.config.field_names import FIELD_OF
from performer_string.timm.model import TimmViT
from performer_string.timm.names import own_weights, pool_of
from performer_string.timm.trained import SHAPELESS, describe, other_fields, read_file
from performer_string.utils.registry import nearest

MODELS = {f"performer_string_{variant}_patch16_224": variant for variant in VARIANTS}

# timm's names of arguments, and those of ViTConfig.
TIMM = ("img_size", "in_chans", "embed_dim", "drop_path_rate", "global_pool", "reg_tokens", "init_values")
NAMES = {name: FIELD_OF[name] for name in TIMM}

default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": {
            "url": "",
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "fixed_input_size": False,
            "pool_size": None,
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": None,  # patches go through a Linear layer
            "classifier": "head",
        }
        for name in MODELS
    }
)


def build_config(variant: str, **arguments: Any) -> ViTConfig:
    """Return the configuration of a model of timm's registry.

    Args:
        variant: name of a size: `micro`, `tiny`, `small`, `base` or `large`.
        arguments: fields of `ViTConfig`, or timm's names of them (`img_size`, `in_chans`, `embed_dim`,
            `drop_path_rate`, `global_pool`, `reg_tokens`, `init_values`).

    Raises:
        ValueError: an unknown argument, with the nearest known one; two names of one field.
    """
    known = {each.name for each in fields(ViTConfig)}
    chosen: dict[str, Any] = {}
    for name, value in arguments.items():
        field = NAMES.get(name, name)
        if field not in known:
            raise ValueError(
                f"performer_string_{variant}_patch16_224 has no argument {name!r}.{nearest(name, known | set(NAMES))} "
                f"It takes the fields of ViTConfig, and {', '.join(NAMES)}."
            )
        if field in chosen:
            raise ValueError(f"{name!r} is given twice: it is another name of {field!r}.")
        if field in ("image_size", "patch_size") and isinstance(value, Sequence):
            value = list(value)
        chosen[field] = value
    return ViTConfig(**{**VARIANTS[variant], **chosen})


def build(variant: str, drop_rate: float = 0.0, global_pool: str = "avg", **arguments: Any) -> TimmViT:
    """Return a model. Without pooling (`global_pool=""`) it has the weights of one that pools by the mean."""
    pool = pool_of(global_pool) if global_pool else "mean"
    config = build_config(variant, **{"pool": pool, **arguments})
    return TimmViT(config, drop_rate=drop_rate, global_pool=global_pool if not global_pool else None)


def register(name: str, variant: str) -> None:
    """Register a model with timm."""

    def create(pretrained: bool = False, pretrained_cfg_overlay: Any = None, **kwargs: Any) -> Any:
        overlay, content = pretrained_cfg_overlay or {}, dict[str, Any]()
        built: list[TimmViT] = []

        def builder(**arguments: Any) -> TimmViT:
            built.append(build(variant, **arguments))
            return built[0]

        if pretrained and overlay.get("file"):
            pretrained_cfg_overlay, content = read_file(overlay)
        try:
            model = build_model_with_cfg(
                builder,
                name,
                pretrained,
                pretrained_cfg_overlay=pretrained_cfg_overlay,
                pretrained_filter_fn=lambda state_dict, model: own_weights(state_dict),
                feature_cfg={"out_indices": 3, "feature_cls": "getter"},
                **kwargs,
            )
        except RuntimeError as error:  # torch names weights whose shapes differ, where fields are what one gives
            wrong = other_fields(built[0].config, content, SHAPELESS) if built else ""
            if not wrong:
                raise
            raise ValueError(
                f"the weights of {overlay['file']} do not fit a model with {wrong}. Give timm.create_model the fields "
                f"of {overlay['file']}."
            ) from error
        if content:
            describe(model if isinstance(model, TimmViT) else model.model, content, overlay)
        return model

    create.__name__, create.__module__ = name, __name__
    create.__doc__ = f"Return the ViT of variant {variant} with patches of 16 pixels. Arguments: `build_config`."
    register_model(create)


__all__ = list(MODELS)  # timm appends the names it registers to it
for _name, _variant in MODELS.items():
    register(_name, _variant)
