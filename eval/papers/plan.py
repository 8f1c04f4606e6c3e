"""Plan a table at a budget: a group of training runs for each set of images, row and kind of attention.

Images are found in the folder `--data DIR`, which contains several data sets as usually unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.papers.check import check_model
from eval.papers.group import AXES, LACKING, NOT_BUILT, OUTSIDE, PLANNED, Group
from eval.papers.table import Budget, TableFile
from performer_string.images.normalisation import NORMALISATION, grey_level
from performer_string.models.config import patch_and_image
from performer_string.utils.registry import lookup
from train.command.arguments import existing_recipe
from train.command.recipe import check_fields, current_recipe
from train.data.sizes import Views
from train.data.tasks import TASKS
from train.runs.environment import ROOT
from train.sweeps.file import check_overrides, select
from train.utils.imports import import_modules, module_names, naming_imports
from train.utils.yaml_file import read_yaml

CHECKED: set[str] = set()  # models known to be buildable
# The file or folder that shows that a set exists in torchvision's layout; or it has files DIR/NAME/train/CLASS/IMAGE.
UNPACKED = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "imagenette": "imagenette2-160",
}
# Sources whose images are in root/train/CLASS. Errors about the places of other sources come from their training.
FOLDERS = {"folder", "imagenet", "videos"}


def make_plan(table: TableFile, budget_name: str, root: Path | None, runs: Path) -> list[Group]:
    """Return the groups of a table at a budget, including those of sets and rows outside the budget.

    Args:
        table: the table.
        budget_name: name of the budget in the table.
        root: folder of the images; None for the table's own.
        runs: folder of all runs of this budget.

    Raises:
        ValueError: a row whose model cannot be built and that is not marked as pending.
    """
    budget = table.budget(budget_name)
    sets = budget.sets(table)
    replaced = {stands for name, stands in sets.items() if stands != name}
    order = [*sets, *(name for name in table.data if name not in sets and name not in replaced)]
    if replaced:
        order = [name for name in order if name in sets or any(block.data == name for block in table.published)]
    groups: dict[tuple[str, str, str], Group] = {}
    for data in order:
        for row in table.rows:
            for attention in table.attention or [""]:
                group = make_group(table, budget, data, row, attention)
                groups[group.key] = group
                try:
                    group.state = state_of(table, budget, group, root)
                except ValueError as error:
                    raise ValueError(f"{table.path}: {group.model}: {error}") from None
                if group.state == PLANNED or group.state.startswith(LACKING):
                    group.seeds = list(budget.seeds)
                if group.state == PLANNED:
                    group.folders = {seed: runs / f"{group.model}-seed{seed}" for seed in budget.seeds}
    for group in groups.values():
        if start := table.rows[group.row].start_from:
            group.start_from = groups[group.data, start, group.attention]
            if group.state == PLANNED and group.start_from.state != PLANNED:
                group.state, group.folders = group.start_from.state, {}
                group.seeds = group.seeds if group.state.startswith(LACKING) else []
    return list(groups.values())


def make_group(table: TableFile, budget: Budget, data: str, row: str, attention: str) -> Group:
    """Return a group with the fields that replace those of its recipe; later parts go before earlier ones."""
    spec = table.data[data]
    parts = (
        *(table.fields, spec.fields, budget.fields, budget.each.get(data, {})),
        *(table.attention.get(attention, {}), table.rows[row].fields, budget.by_row.get(row, {})),
    )
    overrides = current_recipe({name: value for part in parts for name, value in part.items()})
    name = spec.recipe or table.recipe
    recipe = ROOT / name if (ROOT / name).is_file() else existing_recipe(name)
    group = Group(data, row, attention, budget.sets(table).get(data, data), recipe, overrides, images=spec.images)
    if table.imports:  # a field `imports` alone would replace that of the recipe
        names = [*module_names(group.settings().get("imports")), *module_names(table.imports)]
        group.overrides["imports"] = list(dict.fromkeys(names))
    return group


def state_of(table: TableFile, budget: Budget, group: Group, root: Path | None) -> str:
    """Return the state of a group; where it can be trained, add the place of the images to its fields.

    Raises:
        ValueError: a model that cannot be built and is not marked as pending, or that a column does not fit.
    """
    from train.data.checks import check_views  # these import torchvision
    from train.data.sources import SOURCES, outputs_of

    if group.data not in budget.sets(table) or (budget.rows is not None and group.row not in budget.rows):
        return OUTSIDE
    settings, source = group.settings(), group.source
    import_modules(settings.get("imports"))  # these add an encoding, or another part
    try:
        with naming_imports("--imports MODULE, or imports: [MODULE] in the table"):
            check_group(group)
    except ValueError:
        if pending := table.rows[group.row].pending:
            return f"{NOT_BUILT}: {pending}"
        raise
    lookup("source of images", source, {**TASKS, **SOURCES})
    check_views(Views.of(budget.views), source)
    config = group.config()
    check_model(table, config.head, outputs_of(source), patch_and_image(config.patch_size, config.image_size)[0])
    if not budget.seeds:
        return PLANNED
    images = place_images(source, root, str(settings.get("data.root") or "data"), bool(settings.get("data.grey")))
    if isinstance(images, str):
        return images
    group.overrides |= images
    return PLANNED


def place_images(source: str, root: Path | None, own: str = "data", grey: bool = False) -> dict[str, Any] | str:
    """Return the recipe fields with the place of a source's images; where there are none, a message on what to do.

    Args:
        source: `data.source` of the recipe.
        root: folder from `--data`; None for `own`.
        own: `data.root` of the table or its recipe.
        grey: whether images are converted to grey.

    Returns:
        `data.root`, and the source `folder` with the set's mean and standard deviation for plain image files.
    """
    if source in TASKS:
        return {}
    direct = source == "folder" or (root is None and source in FOLDERS)
    given = root or Path(own)
    root = given.expanduser()
    if source in UNPACKED and (root / UNPACKED[source]).is_dir():
        return {"data.root": str(root)}
    folder = root / source
    if (folder / "train").is_dir():
        if source not in UNPACKED:
            return {"data.root": str(folder)}
        mean, std = NORMALISATION[source]
        if grey and len(mean) > 1:
            mean, std = (grey_level(mean),), (grey_level(std),)
        return {"data.source": "folder", "data.root": str(folder), "data.mean": [*mean], "data.std": [*std]}
    if direct and (root / "train").is_dir():
        from train.data.folders import classes_in  # this imports torchvision

        classes = {"model.vit.num_classes": len(classes_in(root / "train"))} if source == "folder" else {}
        return {"data.root": str(root), **classes}
    if source not in {*UNPACKED, *FOLDERS}:
        return {}
    if source == "folder":
        return f"no folder images in {given}: give --data DIR, or data.root, with DIR/train/CLASS and test/CLASS"
    unpacked = f"{given / UNPACKED[source]} or " if source in UNPACKED else ""
    return f"no {source} images: put them in {unpacked}{given / source}/train/CLASS and test/CLASS, or give --data DIR"


def check_group(group: Group) -> None:
    """Check the overrides of a group, once for each distinct model, by building it with one layer.

    Raises:
        ValueError: an unknown field, or values for which no model can be built.
    """
    check_fields(group.overrides)
    model = {name: value for name, value in group.overrides.items() if name.startswith("model.")}
    if not isinstance(group.settings().get("model.vit.attention", ""), list):
        model["model.vit.depth"] = 1  # layers are equal, and large models take seconds to build
    key = json.dumps([str(group.recipe), model], sort_keys=True)
    if key not in CHECKED:
        check_overrides(model, current_recipe(read_yaml(group.recipe)))
        CHECKED.add(key)


def select_groups(groups: Sequence[Group], conditions: Sequence[str]) -> list[Group]:
    """Return the groups that meet every condition `AXIS=NAME,NAME`, and the groups that they start from.

    Raises:
        ValueError: a malformed condition, an unknown axis or name, or conditions that no group meets.
    """
    chosen = select(groups, conditions, AXES, getattr, "row=dense,banded")
    if groups and not chosen:
        raise ValueError(f"nothing meets all conditions of --only {' '.join(conditions)}.")
    wanted = {id(group) for group in chosen} | {id(group.start_from) for group in chosen}
    return [group for group in groups if id(group) in wanted]
