"""Fields of `ViTConfig` by their names in other libraries, for the hints of errors."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar, cast

from performer_string.utils.registry import nearest
from performer_string.utils.renames import FIELDS

T = TypeVar("T")

# Names in timm, torchvision, transformers, vit-pytorch and DINOv2, and the fields here.
FIELD_OF = {
    **dict.fromkeys(("img_size", "input_size", "img_dim"), "image_size"),
    **dict.fromkeys(("in_chans", "channels", "num_channels", "in_dim"), "in_channels"),
    **dict.fromkeys(("num_labels", "n_classes", "classes"), "num_classes"),
    **dict.fromkeys(("embed_dim", "dim", "hidden_size", "hidden_dim", "d_model", "n_embd", "emb_dim"), "width"),
    **dict.fromkeys(("num_layers", "n_layers", "layers", "num_hidden_layers", "n_layer"), "depth"),
    **dict.fromkeys(("heads", "n_heads", "nhead", "n_head", "num_attention_heads"), "num_heads"),
    **dict.fromkeys(("drop_path_rate", "stochastic_depth"), "drop_path"),
    **dict.fromkeys(
        ("drop_rate", "pos_drop_rate", "proj_drop_rate", "emb_dropout", "hidden_dropout_prob", "dropout_rate"),
        "dropout",
    ),
    **dict.fromkeys(("global_pool", "pooling", "pool_type"), "pool"),
    **dict.fromkeys(("reg_tokens", "num_registers", "num_register_tokens"), "registers"),
    **dict.fromkeys(("layer_norm_eps", "eps"), "norm_eps"),
    **dict.fromkeys(("init_values", "layerscale_value", "ls_init_value"), "layer_scale"),
    **dict.fromkeys(("pos_embed", "position_encoding", "pos_encoding", "position_embedding"), "encoding"),
    **dict.fromkeys(("attn", "attention_type", "attn_type", "attn_layer"), "attention"),
    "bias": "qkv_bias",
    "model_size": "variant",
}
WAY_OF = {
    **dict.fromkeys(("mlp_dim", "intermediate_size", "ffn_dim"), "give mlp_ratio, that number over the width"),
    **dict.fromkeys(("head_dim", "dim_head"), "give width and num_heads; queries and keys alone have qk_dim"),
    "coord_dim": "it is the number of axes of image_size and patch_size",
    **dict.fromkeys(("class_token", "cls_token", "use_cls_token"), "give pool='cls'"),
    **dict.fromkeys(("num_features", "nb_features"), "give feature_options={'num_features': ...}"),
    **dict.fromkeys(
        ("attn_drop_rate", "attention_dropout", "attn_drop", "attention_probs_dropout_prob"),
        "attention has no dropout here, and dropout is for the embedding, the MLP and after attention",
    ),
    **dict.fromkeys(("dynamic_img_size", "interpolate_pos_encoding"), "leave it out, a model takes any size of images"),
}


def field_hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint to the name of a field here, with a space before it; an empty string where no name is near.

    Args:
        name: name that `ViTConfig` does not have.
        known: names of its fields.
        prefix: prefix of all these names where they are shown, as `model.vit.` in recipes.
    """
    known = list(known)
    here = FIELD_OF.get(name) or FIELDS.get(name)
    if here in known:
        return f" Here it is {prefix + here!r}."
    if name in WAY_OF:
        return f" In its place: {WAY_OF[name]}."
    return nearest(prefix + name, [prefix + each for each in known])


def explains_fields(kind: type[T]) -> type[T]:
    """Decorate a dataclass: its constructor names unknown fields, with hints to their names here.

    The signature, the fields and pickling stay as they are.

    Raises:
        TypeError: unknown fields, as of any call.
    """
    build: Any = kind.__init__

    @functools.wraps(build)
    def explained(self: T, *args: Any, **values: Any) -> None:
        known = [each.name for each in fields(cast(Any, self))]
        unknown = [f"no field {name!r}.{field_hint(name, known)}" for name in values if name not in known]
        if unknown:
            raise TypeError(f"{type(self).__name__} has {' It has '.join(unknown)}")
        build(self, *args, **values)

    kind.__init__ = explained  # type: ignore[method-assign, assignment]
    return kind
