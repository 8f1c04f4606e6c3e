"""Write a pretrained model of timm as a checkpoint of this project, for evaluation or fine-tuning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import yaml

from performer_string import ViT, from_timm
from performer_string.utils.files import check_writable, write_aside
from performer_string.utils.registry import nearest
from train.command.suggesting_parser import SuggestingParser
from train.data.sizes import Size
from train.optim import OptimConfig
from train.utils.errors import one_message

if TYPE_CHECKING:
    from train.data.module import ImageData  # it takes seconds to import

# Fields that the weights determine. Attention and other new parts are set by the recipe of the fine-tuning.
FIXED: tuple[str, ...] = ("image_size", "patch_size", "in_channels", "width", "depth", "num_heads", "mlp_ratio")
FIXED += ("encoding", "absolute_table", "pool", "registers", "norm_eps")
RECIPE = "train/configs/imagenet.yaml"


def head_option(weights: Path) -> dict[str, Any]:
    """Return the number of classes in a file of weights, 0 without a head, as timm's argument; none for NumPy's."""
    from timm.models import load_state_dict

    if weights.suffix in (".npz", ".npy"):
        return {}
    state = load_state_dict(str(weights))
    heads = [value for name, value in state.items() if name.startswith("head.")]
    return {"num_classes": len(heads[0]) if heads else 0}


def open_model(name: str, weights: Path | None, random: bool) -> tuple[Any, dict[str, Any]]:
    """Return a model of timm, and the mean and standard deviation of its training images.

    Args:
        name: name of the model in timm.
        weights: path of a weight file to load instead of the pretrained weights.
        random: whether to use random instead of pretrained weights.
    """
    try:
        import timm  # an optional package
        from timm.data import resolve_model_data_config
    except ImportError as error:
        raise ValueError(f"this needs timm (pip install timm): {error}.") from error
    known = timm.list_models() + timm.list_pretrained()
    if name not in known:
        raise ValueError(f"timm {timm.__version__} has no model {name!r}.{nearest(name, known)}")
    if weights is not None and not weights.is_file():
        raise FileNotFoundError(f"there is no file {weights}.")
    try:
        if weights is None:
            model = timm.create_model(name, pretrained=not random)
        else:
            model = timm.create_model(name, checkpoint_path=str(weights), **head_option(weights))
    except Exception as error:  # many types: missing weights, no network, a file of another model
        offline = "" if weights or random else " Without a network, give a file of weights: --weights FILE."
        raise ValueError(
            f"timm cannot give {name} with these weights: {type(error).__name__}: {str(error).rstrip('.')}.{offline}"
        ) from error
    shown = resolve_model_data_config(model)
    return model, {name: list(shown[name]) for name in ("mean", "std")}


def checkpoint(vit: ViT, data: ImageData) -> dict[str, Any]:
    """Return a checkpoint for `python -m train` and `python -m eval` from a model that was trained elsewhere."""
    from train.module import plain_settings

    return {
        "state_dict": {f"vit.{name}": value for name, value in vit.state_dict().items()},
        "hyper_parameters": plain_settings(vit.config, OptimConfig(), [str(Size.of(data.size))]),
        "ImageData": {"config": data.plain(), "position": None},
        "global_step": 0,
    }


def larger(vit: ViT, factor: float) -> str:
    """Return the size of a model's images times a factor, in whole patches, as text."""
    sizes = zip(cast(list, vit.config.image_size), vit.patch, strict=True)
    return str(Size.of([round(factor * size / patch) * patch for size, patch in sizes]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a model of timm as a checkpoint and a recipe, from the command line."""
    parser = SuggestingParser(prog="python -m train.pretrained", description=__doc__)
    parser.add_argument("name", help="model of timm, such as vit_small_patch16_rope_mixed_224.naver_in1k")
    parser.add_argument("--out", type=Path, default=Path("pretrained"), help="output folder (default: %(default)s)")
    parser.add_argument("--weights", type=Path, help="weight file in timm's format, instead of a download")
    parser.add_argument("--random", action="store_true", help="random weights, as at the start of a training")
    parser.add_argument(
        "--source", help="source of test images (default: imagenet; folder for a head of other classes)"
    )
    parser.add_argument("--root", default="data/imagenet", help="folder of the images (default: %(default)s)")
    options = parser.parse_args(arguments)
    with one_message():
        check_writable("--out", options.out)  # before a download
        from train.data.module import ImageData
        from train.data.sources import SOURCES

        model, normal = open_model(options.name, options.weights, options.random)
        vit = from_timm(model)
        size = list(cast(list, vit.config.image_size))
        classes = vit.config.num_classes
        source = options.source or ("imagenet" if classes in (0, 1000) else "folder")
        data = ImageData(source=source, root=options.root, size=size, **normal)
        file, settings = options.out / f"{options.name}.ckpt", options.out / f"{options.name}.yaml"
        fine_tune = ["python", "-m", "train", "fit", "--config", RECIPE, "--config", str(settings)]
        fine_tune += ["--init_from", str(file), "--data.root", "DIR"]
        fine_tune += ["--trainer.devices", "1", "--trainer.strategy", "auto"]  # the recipe has eight devices
        if source != "imagenet":
            fine_tune += ["--data.source", source]
            if source in SOURCES and SOURCES[source].count is None:
                fine_tune += ["--model.vit.num_classes", str(classes or "N")]
            fine_tune += ["--data.val_fraction", "0.1"]  # the recipe holds out a hundredth, for ImageNet
        fixed = {name: value for name, value in asdict(vit.config).items() if name in FIXED}
        content: dict[str, Any] = {"model": {"vit": {"variant": None, **fixed, "encoding_options": {}}}}
        content["data"] = {**normal, "resolutions": [larger(vit, 9 / 7), larger(vit, 12 / 7)]}  # 288 and 384 for 224
        with write_aside(file) as partial:
            torch.save(checkpoint(vit, data), partial)
        with write_aside(settings) as partial:
            text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None)
            partial.write_text(
                f"# What the weights in {file} decide, for a recipe to stand before.\n{text}", encoding="utf-8"
            )
    millions = sum(p.numel() for p in vit.parameters()) / 1e6
    print(f"{file}: {millions:.1f} million parameters, encoding {vit.config.encoding}, the outputs of timm's model.")
    if classes:
        print(f"Evaluate:  python -m eval resolution --checkpoint {shlex.quote(str(file))} --root DIR")
    else:
        print("It has no head for classes: fine-tuning gives it one, and its features are tested without one.")
        print(f"Features:  python -m eval knn {shlex.quote(str(file))} --folder DIR")
    print(f"Fine-tune: {shlex.join(fine_tune)}")


if __name__ == "__main__":
    main()
