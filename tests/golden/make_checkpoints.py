"""The checkpoints: `python -m tests.golden.make_checkpoints` trains them by the command line.

They show that old checkpoints, recipes and runs are still read. So they are not to be written again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from safetensors.torch import save_file

from performer_string import ViT, fold

from . import runs
from .numbers import fill

KEPT = ("state_dict", "hyper_parameters", "ImageData", "classifier", "global_step", "epoch")


def moved(x: Any, folder: str) -> Any:
    """Return the content of a checkpoint without the folder that it was trained in."""
    if isinstance(x, dict):
        return {moved(key, folder): moved(value, folder) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(moved(value, folder) for value in x)
    return x.replace(folder, "runs") if isinstance(x, str) else x


def seen(path: Path, out: str) -> torch.Tensor:
    """Return the images that an evaluation shows to the model of a checkpoint."""
    found: list[torch.Tensor] = []
    forward = ViT.forward

    def record(model: ViT, images: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        found.append(images.clone())
        return forward(model, images, *rest, **named)

    with mock.patch.object(ViT, "forward", record):
        options = ["--split", "val", "--resolutions", "84", "--device", "cpu", "--out", out]
        runs.command("eval", "resolution", "--checkpoint", str(path), *options, folder=Path(out))
    return torch.cat(found)


@torch.no_grad()
def study(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint with the large weights of the golden outputs, and with logits that differ between images."""
    torch.save(content, path)
    model = fill(ViT.from_checkpoint(path)).float()
    content["ImageData"]["config"]["val_size"] = 100

    def save() -> None:
        content["state_dict"] = {f"vit.{name}": value for name, value in model.state_dict().items()}
        torch.save(content, path)

    save()
    with tempfile.TemporaryDirectory() as out:
        logits = model(seen(path, out))
    model.head.weight /= logits.std(0)[:, None]
    model.head.bias.copy_((model.head.bias - logits.mean(0)) / logits.std(0))
    save()


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(runs.CHECKPOINTS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in runs.MODELS:
            (Path(folder) / "recipe.yaml").write_text(yaml.safe_dump(runs.recipe(name)))
            runs.command("train", "fit", "--config", "recipe.yaml", "--run_dir", name, folder=Path(folder))
            made, kept = Path(folder) / name / "checkpoints" / "last.ckpt", runs.checkpoint(name)
            kept.parent.mkdir(parents=True)
            content = moved(torch.load(made, weights_only=True), folder)
            if name == runs.WHOLE:
                torch.save(content, kept)
                shutil.copy(made.parents[1] / "config.yaml", kept.parents[1])
            else:
                torch.save({key: content[key] for key in KEPT}, kept)
        runs.command("train", "resume", runs.WHOLE, *runs.RESUME, folder=Path(folder))
        resumed = ViT.from_checkpoint(Path(folder) / runs.WHOLE / "checkpoints" / "last.ckpt")
        after = {"resumed": runs.logits(resumed)}
    for name in runs.STUDIED:
        path = runs.checkpoint(f"studied-{name}")
        path.parent.mkdir(parents=True)
        study(torch.load(runs.checkpoint(name), weights_only=True), path)
    with tempfile.TemporaryDirectory() as folder:
        save_file({**after, "begun": runs.begun(Path(folder))}, runs.RESUMED)
    models = {path.parents[1].name: ViT.from_checkpoint(path) for path in runs.CHECKPOINTS.rglob("*.ckpt")}
    folded = fold(models["softmax"])
    save_file({key: x.contiguous() for key, x in folded.state_dict().items()}, runs.FOLDED)
    models["folded"] = folded
    save_file({name: runs.logits(model) for name, model in models.items()}, runs.LOGITS)
    for path in sorted(runs.CHECKPOINTS.rglob("*.*")):
        print(path.relative_to(runs.CHECKPOINTS), path.stat().st_size)


if __name__ == "__main__":
    main()
