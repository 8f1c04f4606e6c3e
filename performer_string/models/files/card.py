"""The model card: a summary of the model, its accuracy and training, code that loads it, and its limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from performer_string.models.config import ViTConfig, patch_and_image
from performer_string.models.files.citation import citation
from performer_string.models.files.metrics import accuracy_table, check_metric, hub_value, table

if TYPE_CHECKING:
    from performer_string.models.vit.model import ViT

LIMITS = (
    "Inputs must be normalised as in training, as above.",
    "Attention is bidirectional, and each side of an image must be a whole number of patches.",
)
REGRESSION = "image-regression"  # the Hub has no name for it
TAGS = ["performer_string", "vision-transformer", "string-position-encoding"]


@dataclass
class ModelDetails:
    """Details of a model that are not in it, for its card and `config.json`.

    Attributes:
        name: name of the model.
        dataset: training data, in words.
        licence: licence by its SPDX name, such as `apache-2.0`; empty where none is given.
        command: command that trained the model.
        environment: lines on the code, the device and the versions that trained it.
        metrics: figures, each with `split`, `resolution` (as 108 or 96x128), `tokens` and one value: `accuracy`, or
            another under its own name, such as `mAP` or `MAE`. `low` and `high` (of the 95 % interval) and `images` are
            there where they are known. An accuracy is a percentage.
        limits: sentences on what the model is not for, besides the limits of every model.
        imports: names of the user's own modules that add parts of the model, to be imported before it is loaded.
        training: facts on the data and the training that an evaluation needs: see `train.publish`.
    """

    name: str = "model"
    dataset: str = ""
    licence: str = ""
    command: str = ""
    environment: Sequence[str] = ()
    metrics: Sequence[Mapping[str, Any]] = ()
    limits: Sequence[str] = ()
    imports: Sequence[str] = ()
    training: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w][\w.-]*", self.name):
            raise ValueError(f"a model's name has letters, digits, dots, dashes and underscores, not {self.name!r}.")
        for metric in self.metrics:
            check_metric(metric)


def describe_attention(config: ViTConfig) -> str:
    """Return the attention of a model in words, such as `linear attention (favor+) with softmax in 1 of 4 layers`."""
    names = [config.attention_of(layer) for layer in range(config.depth or 0)]
    first, *others = sorted(config.kinds_of_attention(), key=lambda name: (name != "linear", -names.count(name)))
    text = f"{first} attention" + (f" ({config.feature_map})" if config.has_feature_map(first) else "")
    counts = [f"{name} in {names.count(name)} of {len(names)} layers" for name in others]
    return " with ".join([text, " and ".join(counts)]) if counts else text


def architecture(config: ViTConfig) -> str:
    """Return the parts of a model in words, such as `linear attention (favor+), circulant-string`."""
    parts = [describe_attention(config), f"encoding {config.encoding}"]
    kind = "relative bias" if config.locality in ("table", "kerple") else "distance decay"
    parts += [f"{kind} {config.locality}"] if config.locality else []
    parts += [f"value map {config.values}"] if config.values else []
    return ", ".join(parts)


def facts(model: ViT, details: ModelDetails) -> list[tuple[str, str]]:
    """Return a summary of a model, as lines of a table."""
    c = model.config
    patch, image = patch_and_image(c.patch_size, c.image_size)
    sides, patches = (" x ".join(map(str, x)) for x in (image, patch))
    classes, channels = f"{c.num_classes}", f"{c.in_channels} channel{'s' if c.in_channels > 1 else ''}"
    if model.classes:
        shown = ", ".join(model.classes[:10])
        classes += f": {shown}{', ...' if len(model.classes) > 10 else ''}"
    count = sum(parameter.numel() for parameter in model.parameters())
    return [
        ("model", architecture(c)),
        ("size", f"width {c.width}, depth {c.depth}, {c.num_heads} heads, {count:,} parameters"),
        (
            "images",
            f"{sides} pixels with {channels}, in {math.prod(model.train_grid)} patches of {patches}",
        ),
        (outputs_of(model) if outputs_of(model) != "class" else "classes", classes),
        *([("frames", chosen)] if (chosen := frames_chosen(details)) else []),
        ("trained on", details.dataset or "not recorded"),
    ]


def outputs_of(model: ViT) -> str:
    """Return what the outputs of a model are, as in its `Preprocessing`."""
    return "class" if model.preprocessing is None else model.preprocessing.outputs


def frames_chosen(details: ModelDetails) -> str:
    """Return which frames of a video file the training took, in words; empty for other models."""
    data = (details.training or {}).get("data", {}).get("config", {})
    if data.get("source") != "videos":
        return ""
    stride = data.get("frame_stride", 0)
    return (
        f"consecutive frames {stride} apart, around the middle" if stride else "spread over the whole length of a file"
    )


def front_matter(details: ModelDetails, task: str) -> str:
    """Return the YAML that the Hub reads; `task` is the Hub's name of a task, or `REGRESSION`."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=task,
            dataset_type=details.dataset or "unknown",
            dataset_name=details.dataset or "unknown",
            dataset_config=f"{metric['resolution']} px",
            dataset_split=metric["split"],
            metric_type=hub_value(metric)[0],
            metric_value=hub_value(metric)[1],
            metric_args={"images": metric["images"]} if "images" in metric else None,
        )
        for metric in details.metrics
    ]
    data = ModelCardData(
        model_name=details.name,
        license=details.licence or None,
        library_name="performer_string",
        pipeline_tag=None if task == REGRESSION else task,
        tags=TAGS,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def answer(call: str, outputs: str) -> str:
    """Return a line of code that turns the outputs of a `call` of the model into its answer to the one image."""
    if outputs == "numbers":
        return f"numbers = {call}[0]"
    return f"probabilities = {call}.{'sigmoid()' if outputs == 'labels' else 'softmax(-1)'}[0]"


def example(model: ViT, imports: Sequence[str]) -> list[str]:
    """Return the lines of code that load a model and ask it about an image, after imports of modules."""
    load = [
        *(f"import {name}  # adds a part of the model; its file is not in this folder" for name in imports),
        "from performer_string import ViT",
        "",
        'model = ViT.from_pretrained("DIR")  # this folder, or its name on the Hub',
    ]
    if model.preprocessing is None:
        ask = ["logits = model(images)  # [B, channels, height, width], normalised as in training"]
        return ["```python", *load, *ask, "```"]
    if len(model.patch) == 3:
        ask = [
            "frames = ...  # uint8 [1, channels, frames, height, width], resized as in training",
            "known = model.preprocessing",
            "mean, std = (torch.tensor(x).view(-1, 1, 1, 1) for x in (known.mean, known.std))",
            f"{answer('model((frames / 255 - mean) / std)', outputs_of(model))}  # in the order of model.classes",
        ]
        return ["```python", "import torch", *load, *ask, "```"]
    if model.config.head == "dense":
        ask = [
            "image = model.transform(SIZE)(Image.open(PATH))  # resized to cover SIZE in pixels, then its middle",
            "classes = model(image[None]).argmax(1)  # of each pixel, numbered as in model.classes",
        ]
        mask = "`python -m eval segment DIR PATH` writes a mask of the image's own size."
        return ["```python", "from PIL import Image", *load, *ask, "```", "", mask]
    arrays = model.config.in_channels not in (1, 3)
    opened = "numpy.load(PATH)" if arrays else "Image.open(PATH)"
    ask = [
        f"image = model.transform()({opened})  # transform(SIZE) for another size",
        f"{answer('model(image[None])', outputs_of(model))}  # in the order of model.classes",
    ]
    if model.classes and outputs_of(model) == "class":
        ask += ["print(model.classes[probabilities.argmax()], probabilities.max().item())"]
    return ["```python", "import numpy" if arrays else "from PIL import Image", *load, *ask, "```"]


def card(model: ViT, details: ModelDetails) -> str:
    """Return the text of a model card."""
    task = "video-classification" if len(model.patch) == 3 else "image-classification"
    task = "image-segmentation" if model.config.head == "dense" else task
    task = REGRESSION if outputs_of(model) == "numbers" else task
    matter = front_matter(details, task)
    lines = ["---", matter, "---", "", f"# {details.name}", ""]
    lines += ["A Vision Transformer of performer_string.", "", *table(["", ""], facts(model, details)), ""]
    extras = "hub" if model.preprocessing is None else "hub,images"
    lines += ["## Use", "", "Install the library in a clone of its repository:", ""]
    lines += ["```sh", f'pip install -e ".[{extras}]"', "```", ""]
    lines += [*example(model, details.imports), ""]
    lines += ["## Accuracy" if all("accuracy" in metric for metric in details.metrics) else "## Results", ""]
    if details.metrics:
        lines += [*accuracy_table(details.metrics), "", "Intervals are over the images, for this one model.", ""]
    else:
        lines += ["Not recorded.", ""]
    lines += ["## Training", ""]
    lines += ["```sh", details.command, "```", ""] if details.command else ["The command is not recorded.", ""]
    lines += [f"- {line}" for line in details.environment] + ([""] if details.environment else [])
    lines += ["## Limits", "", *(f"- {line}" for line in (*details.limits, *LIMITS)), ""]
    lines += ["## Citation", "", "The software, and the papers of the model's parts:", ""]
    lines += ["```bibtex", citation(model.config), "```", ""]
    lines += ["## Licence", "", details.licence or "None is given: ask whoever published the model.", ""]
    return "\n".join(lines)
