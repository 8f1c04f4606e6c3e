"""Where does a model look? Attention over an image, for each layer, and for models and resolutions side by side.

`python -m eval attention RUN IMAGE [RUN...]` draws the attention of one patch (`query`), that of the class token
(`class`), or attention rollout (arXiv:2005.00928). Rows are layers. Colours are weights relative to equal weights of
all patches, on one scale for the whole figure. With `--normalise map` each map goes from its lowest weight, blue, to
its highest, red, as in LieRE's Figures 10 and 11 (arXiv:2406.10322). `--example N` takes a test image of the training's
data instead of an IMAGE.

Columns: `model`, `resolution` (pixels), `kind` (query, class or rollout), `layer` and `head` (from 0; `mean` over all
heads), `row`, `column` (of the patch), `weight`, `image`, `query` (row and column of the patch that attends), `answer`,
`picture` (the file of the image in the folder `pictures`, in grey), and `normalise` where that is `map`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.argument_types import WithoutRepetitions
from eval.attention.maps import attention_map, has_class_token, layers_of, token_of_patch
from eval.attention.overlay import AT_QUERY
from eval.attention.picture_files import Picture, grey_picture, name_of, picture_of_file, write_pictures
from eval.attention.pictures_report import SHOWN
from eval.checkpoints import MODEL, take_root
from eval.evaluations import Evaluation
from eval.models import class_names, load_model, preprocessing_of
from eval.names import names_of
from eval.report import Row
from performer_string import ViT
from performer_string.images import deep
from performer_string.images.reading import why_unreadable
from performer_string.models.files.paths import find_checkpoint
from train.data.sizes import Size, image_size
from train.utils.progress import progress
from train.utils.ranges import at_least

KINDS = ("query", "class", "rollout")


def is_image(path: Path) -> bool:
    """Return whether a path has the ending of an image, or of an array."""
    from train.data.class_folders import ENDINGS  # this imports torchvision

    return path.suffix.lower() in {*ENDINGS, deep.ARRAY}


class ModelsAndImage(argparse.Action):
    """Separate the positional arguments into models and the image, by the file endings of images."""

    def __call__(self, parser, namespace, values, option_string=None):  # type: ignore[no-untyped-def]
        images = list(filter(is_image, values))
        namespace.image = images
        namespace.checkpoint = [find_checkpoint(path) for path in values if path not in images]


def place(text: str) -> tuple[float, float]:
    """Parse a point in an image from shares of its height and width: `0.25,0.5`."""
    try:
        y, x = map(float, text.split(","))
    except ValueError:
        y = x = math.nan
    if not (0 <= y <= 1 and 0 <= x <= 1):
        raise argparse.ArgumentTypeError(
            f"a query is Y,X as shares of the height and width, each from 0 to 1, like 0.25,0.5, not {text!r}"
        )
    return y, x


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `eval attention`."""
    paths = f"one image, and one or more models, each a {MODEL}"
    parser.add_argument("paths", nargs="+", type=Path, action=ModelsAndImage, metavar="RUN|IMAGE", help=paths)
    example = "index of a test image of the training's data, shown at each resolution, instead of an image file"
    parser.add_argument("--example", type=at_least(0), metavar="N", help=example)
    parser.add_argument("--root", help="folder of the images of --example, if not where they were in training")
    sizes = "sizes of the image in pixels: 168, or 96x128 (height x width); default: training sizes"
    parser.add_argument("--resolutions", nargs="+", type=image_size, action=WithoutRepetitions, help=sizes)
    kinds = "what to draw (default: class where all models have a class token, else query)"
    parser.add_argument("--kind", nargs="+", choices=KINDS, action=WithoutRepetitions, help=kinds)
    query = "point of the query's patch, as shares of the height and width (default: 0.5,0.5)"
    parser.add_argument("--query", type=place, default=(0.5, 0.5), metavar="Y,X", help=query)
    layers = "indices of layers, from 0 (default: all)"
    parser.add_argument("--layer", nargs="+", type=at_least(0), action=WithoutRepetitions, help=layers)
    normalise = "one scale for the whole figure, or each map from its lowest to its highest weight (default: figure)"
    parser.add_argument("--normalise", choices=("figure", "map"), default="figure", help=normalise)
    parser.add_argument("--head", type=at_least(0), help="counted from 0 (default: the mean over heads)")


def check(options: argparse.Namespace, models: dict[str, ViT]) -> None:
    """Fill in defaults, and raise a ValueError where a model lacks a chosen layer, head or kind."""
    if len(options.image) != (options.example is None):
        raise ValueError(
            f"give one image, or --example N for one of the training's test images, not {len(options.image)} images"
            f"{'' if options.example is None else ' and --example'}. Image files are known by their endings."
        )
    without = [name for name, vit in models.items() if not has_class_token(vit)]
    options.kind = options.kind or (["query"] if without else ["class"])
    if "class" in options.kind and without:
        raise ValueError(f"{', '.join(without)} has no class token (pool: cls): take --kind query or rollout.")
    if options.resolutions is None:
        sizes = (vit.train_image_size for vit in models.values())
        options.resolutions = list(dict.fromkeys(map(Size.of, sizes)))
    for name, vit in models.items():
        for size in options.resolutions:
            vit.grid(*size)
        if options.head is not None and options.head >= vit.attentions()[0].num_heads:
            raise ValueError(f"{name} has {vit.attentions()[0].num_heads} heads, counted from 0: no {options.head}.")
        missing = [layer for layer in options.layer or [] if layer >= len(vit.blocks)]
        if missing:
            raise ValueError(f"{name} has {len(vit.blocks)} layers, counted from 0: no {missing[0]}.")


def load(options: argparse.Namespace) -> dict[str, tuple[ViT, Path]]:
    """Return the models by name, each with its checkpoint.

    Raises:
        ValueError: no model, a missing image, or a folder in place of an image.
    """
    for path in options.image:
        if not path.is_file():
            raise ValueError(f"there is no image {path}.")
    for path in options.checkpoint:
        if path.is_dir() and (inside := sorted(filter(is_image, path.iterdir()))):
            raise ValueError(f"{path} is a folder of images, and one image is drawn over: give {inside[0]}.")
    if not options.checkpoint:
        raise ValueError("give the folder of a run, or a checkpoint.")
    names = names_of(options.checkpoint)
    return {name: (load_model(path, None), path) for name, path in zip(names, options.checkpoint, strict=True)}


def read_image(vit: ViT, path: Path, options: argparse.Namespace, size: Size) -> tuple[Tensor, str, Picture]:
    """Return a preprocessed image [C, H, W] from a file or the test set, its name and its grey picture."""
    preprocessing = preprocessing_of(vit, path)
    if options.example is None:
        file = str(options.image[0])
        try:
            picture = grey_picture(picture_of_file(file, size))
            return preprocessing.transform(size)(deep.read_image(file, preprocessing.background)), file, picture
        except OSError as error:
            raise ValueError(f"{file} was not read: {why_unreadable(file, error)}.") from None
    from train.checkpoint import load_trained

    data = load_trained(path).data
    take_root(data, options.root, str(path))
    data.setup("test")
    held_out: Any = data.held_out("test", size, 0 if data.task is None else options.example + 1)
    if options.example >= len(held_out):
        raise ValueError(f"--example {options.example}: there are {len(held_out)} test images, counted from 0.")
    # By the number in the data set, which `eval confusion` prints; evaluations take images in another order.
    indices = getattr(held_out, "indices", None)
    image, label = held_out[options.example if indices is None else indices.tolist().index(options.example)]
    truth = "" if vit.config.head == "dense" else f": {class_names(vit)[label]}"
    name = f"test image {options.example}{truth}"
    return preprocessing.normalise(image), name, grey_picture(deep.as_picture(image))


def answer_of(vit: ViT, logits: Tensor, query: tuple[int, int]) -> str:
    """Return the most probable class and its probability as text, of logits [K], or [K, H, W] at the query's patch."""
    where = ""
    if vit.config.head == "dense":
        y, x = (place * side + side // 2 for place, side in zip(query, vit.patch, strict=True))
        logits, where = logits[:, y, x], f" {AT_QUERY}"
    answer = logits.softmax(0)
    return f"{class_names(vit)[int(answer.argmax())]}{where} {100 * float(answer.max()):.0f} %"


def evaluate(options: argparse.Namespace, device: torch.device) -> Generator[Row, None, dict[str, Picture]]:
    """Yield a row for each patch, layer, kind, resolution and model.

    Returns:
        The grey pictures beneath the maps, by the names of their files.
    """
    loaded, pictures = load(options), dict[str, Picture]()
    check(options, {name: vit for name, (vit, _) in loaded.items()})
    jobs = [(name, size) for name in loaded for size in options.resolutions]
    for name, size in progress(jobs, desc="maps"):
        vit, path = loaded[name]
        image, image_name, picture = read_image(vit, path, options, size)
        pictures[name_of(picture, size)] = picture
        vit.to(device)
        with torch.inference_mode():
            logits = vit(image[None].to(device))[0].float()  # [K], or [K, H, W]
        layers, grid = layers_of(vit, image.to(device)), vit.grid(*size)
        query = divmod(token_of_patch(vit, grid, options.query) - vit.num_prefix, grid[1])
        common = {
            "head": "mean" if options.head is None else options.head,
            "image": image_name,
            "query": f"{query[0]},{query[1]}",
            "answer": answer_of(vit, logits, query),
            "picture": name_of(picture, size),
            **({} if options.normalise == "figure" else {"normalise": options.normalise}),
        }
        for kind in options.kind:
            maps = attention_map(vit, layers, grid, kind, options.query, options.head).cpu().numpy()
            for layer in options.layer or range(len(maps)):
                for (y, x), weight in np.ndenumerate(maps[layer]):
                    yield {
                        **{"model": name, "resolution": size, "kind": kind, "layer": layer, "head": common["head"]},
                        **{"row": y, "column": x, "weight": float(f"{weight:.5g}")},
                        **{key: value for key, value in common.items() if key != "head"},
                    }
    return pictures


def files(rows: Sequence[Row], pictures: Mapping[str, Picture], options: argparse.Namespace, csv: Path) -> list[Path]:
    """Write the pictures beneath the maps to the folder `pictures`, from which the figure is drawn."""
    return write_pictures(pictures, csv)


EVALUATION = Evaluation(__doc__, add_arguments, evaluate, SHOWN, files=files)
