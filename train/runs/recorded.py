"""Read the records of a run, without the paths of its machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from performer_string.utils.files import read_json
from train.data.tasks import TASKS
from train.intervals import accuracy_percent
from train.runs.environment import ROOT
from train.runs.folder import BEST, CHECKPOINTS, CONFIG, COUNTED, METRICS, run_of
from train.runs.history import read_history
from train.targets import MAIN, best_by
from train.utils.imports import module_names
from train.utils.yaml_file import read_yaml

LOCAL = {"run_dir", "if_run_exists", "data.workers", "trainer.enable_progress_bar"}  # options that change no result
WEIGHTS = {"--init_from", "--model.distillation.teacher"}  # options that name another run or model
PLACE = "data.root"  # folder of the images, which depends on the machine
OF_PLACES = ("root", "workers", "download")  # fields of `ImageData` that depend on the machine
# Keys of the images in the state of `ImageData`.
OF_IMAGES = ("classes", "files", "names", "val_split", "val_files", "measured")


def without_place(value: str) -> str:
    """Return a value without folders that exist only on this machine.

    A recipe of the project becomes its path in the repository, and any other path its last part.
    """
    value = str(Path(value).expanduser()) if value.startswith("~") else value
    if PurePath(value).is_absolute() and (path := Path(value).resolve()).is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    parts = PureWindowsPath(value).parts  # it splits at both kinds of slashes
    if not PurePath(value).is_absolute() and not PureWindowsPath(value).is_absolute():
        return value
    if parts[-3:-1] == ("train", "configs") and (Path(__file__).parents[1] / "configs" / parts[-1]).is_file():
        return "/".join(parts[-3:])
    if parts[-1] == CONFIG:
        return "/".join(parts[-2:])
    return parts[-3] if len(parts) > 3 and parts[-2] == CHECKPOINTS else parts[-1]


def portable(command: str) -> str:
    """Return the command of a training run for other machines, without options for places on this machine."""
    words: list[str] = []
    arguments = iter(shlex.split(command))
    for word in arguments:
        name, given, value = word.partition("=")
        name = name.removeprefix("--")
        if not word.startswith("--"):
            words.append(without_place(word))
        elif name in LOCAL or name == PLACE:
            if not given:
                next(arguments, None)
            if name == PLACE:
                words += [f"--{PLACE}", "DIR"]
        elif given:
            words.append(f"--{name}={without_place(value)}")
        else:
            words.append(word)
    return shlex.join(words)


def needed(command: str) -> list[str]:
    """Return the recipes and weights of other runs that the command of a training names."""
    words = [part for word in shlex.split(command) for part in word.split("=", word.startswith("--"))]
    named = (v for name, v in pairwise(words) if name in WEIGHTS or (name, Path(v).name) == ("--config", CONFIG))
    return list(dict.fromkeys(named))


def devices_in_turn(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the distinct devices in the history of a run, with versions; a resumed run may have several."""
    return list(dict.fromkeys(f"{line['device']} ({line['versions']})" for line in lines))


def trained_by(run: Path) -> tuple[str, list[str]]:
    """Return the first command of a run, and lines on code, device and versions; empty without a record."""
    lines = read_history(run)
    if not lines:
        return "", []
    first = lines[0]
    environment = [f"code: {first['code']}", f"device: {first['device']}", f"versions: {first['versions']}"]
    if names := needed(command := portable(first["command"])):
        there = "is" if len(names) == 1 else "are"
        environment.insert(0, f"the command needs {' and '.join(names)}, which {there} not in this folder")
    environment += [f"then on: {device}" for device in devices_in_turn(lines)[1:]]
    if len(lines) > 1:
        times = "once" if len(lines) == 2 else f"{len(lines) - 1} times"
        environment.append(f"resumed {times}, the first command is above")
        later = dict.fromkeys(portable(line["command"]) for line in lines[1:])
        environment += [f"resumed by: {command}" for command in later if " resume " in command and " --" in command]
    return command, environment


def recorded_imports(run: Path) -> list[str]:
    """Return the user's modules in the configuration of a run; none without a configuration."""
    path = run / CONFIG
    return module_names(read_yaml(path).get("imports") if path.is_file() else None)


def unfinished(checkpoint: Path, content: Mapping[str, Any]) -> str:
    """Return a sentence on a run that is not finished, else an empty text.

    Args:
        checkpoint: absolute path of the checkpoint; nothing is known of the run of one that lies elsewhere.
        content: content of the checkpoint.
    """
    run = run_of(checkpoint)
    if run is None or (run / METRICS).is_file():
        return ""
    step = content.get("global_step")
    return f"This run is not finished{'' if step is None else f': step {step}'}."


def training_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training run that evaluations need, from the content of its checkpoint.

    Returns:
        A mapping with `data` (fields of `ImageData` without places, and the classes, fingerprint and measured mean of
        the images), `steps` (of the training), and the classifier's settings `optim`, `distillation`, `resolutions`
        and so on.
    """
    data, saved = content["ImageData"], content["hyper_parameters"]
    config = {name: value for name, value in data["config"].items() if name not in OF_PLACES}
    images = {name: data[name] for name in OF_IMAGES if data.get(name) is not None}
    distillation = dict(saved.get("distillation") or {})
    if distillation.get("teacher"):
        distillation["teacher"] = without_place(str(Path(distillation["teacher"]).expanduser().absolute()))
    return {
        "data": {"config": config, **images},
        "steps": content.get("global_step"),
        **{name: value for name, value in saved.items() if name != "vit"},
        "distillation": distillation,
    }


def held_out_images(content: Mapping[str, Any]) -> int | None:
    """Return how many images a run holds out for validation, as far as its checkpoint says."""
    data = content["ImageData"]
    if data["config"]["source"] in TASKS:
        return int(data["config"]["val_size"])
    if data.get("val_split"):  # the source's own validation set, whose size old checkpoints do not store
        return data.get("val_files")
    files = data.get("files")
    if not data["config"]["val_fraction"]:
        return None
    return max(1, round(files * data["config"]["val_fraction"])) if files else None


def validated_metrics(run: Path, checkpoint: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the accuracies of a checkpoint in its run's last validation, or the best at the training size.

    There are none for a checkpoint of another step than that validation.
    """
    sizes = content["hyper_parameters"]["resolutions"]
    saved = saved_metrics(run, content.get("global_step"))
    outputs = (content.get("preprocessing") or {}).get("outputs", "class")
    dense = content["hyper_parameters"]["vit"].get("head") == "dense"
    if dense or outputs != "class":
        names = ("accuracy", "miou") if dense else (best_by(outputs, "class"),)
        return [] if checkpoint.name == BEST else without_intervals(saved, sizes, names)
    if checkpoint.name == BEST:
        # A user's own ModelCheckpoint, perhaps of a loss, may come before this project's.
        states = list((content.get("callbacks") or {}).values())
        ours = [state for state in states if state.get("monitor", "val/accuracy") == "val/accuracy"]
        scores = [state["best_model_score"] for state in ours if state.get("best_model_score") is not None]
        counted = next((state["images"] for state in states if "images" in state), None)
        shares = {sizes[0]: float(scores[0])} if scores else {}
    else:
        shares = {size: saved[name] for size in sizes if (name := f"val/accuracy_{size}") in saved}
        counted = saved.get(COUNTED)
    total = held_out_images(content) if counted is None else counted  # all images for runs that did not count them
    return [{"split": "val", "resolution": size, **accuracy(share, total)} for size, share in shares.items()]


def saved_metrics(run: Path, step: int | None) -> dict[str, Any]:
    """Return the metrics of a run's last validation, by name; none where it has not written them, or at another step.

    Args:
        run: folder of the run.
        step: step of the checkpoint; None where it is not known.
    """
    path = run / METRICS
    saved: dict[str, Any] = read_json(path) if path.is_file() else {}
    return saved if step in (None, saved.get("step", step)) else {}


def without_intervals(saved: Mapping[str, Any], sizes: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return metrics of a run's last validation, by their names as they are logged."""
    return [
        {
            "split": "val",
            "resolution": size,
            **{MAIN[n].name: MAIN[n].rounded(MAIN[n].scale * saved[f"val/{n}_{size}"]) for n in names},
        }
        for size in sizes
        if all(f"val/{name}_{size}" in saved for name in names)
    ]


def accuracy(share: float, total: int | None) -> dict[str, Any]:
    """Return an accuracy in %, and its interval where the number of images is known."""
    if total is None:
        return {"accuracy": round(100 * share, 4)}
    return {**accuracy_percent(round(share * total), total), "accuracy": round(100 * share, 4)}
