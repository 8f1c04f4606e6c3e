"""The plan of a table at a budget: its groups of training runs, one for each set, row and kind of attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.papers.group import AXES, Group
from eval.papers.image_places import missing_images, place_images
from eval.papers.table_checks import check_column_sizes, check_measures
from eval.papers.table_spec import Budget, TableFile
from performer_string.models.config import patch_and_image
from train.command.arguments import existing_recipe
from train.command.recipe import check_fields, current_recipe
from train.data.sizes import Views
from train.data.tasks import TASKS
from train.runs.environment import ROOT
from train.sweeps.file import check_overrides, select
from train.utils.imports import import_modules, module_names, naming_imports
from train.utils.yaml_file import read_yaml

CHECKED: set[str] = set()  # models known to be buildable


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
    groups: dict[tuple[str, str, str], Group] = {}
    order = [*sets, *(name for name in table.data if name not in sets and name not in replaced)]
    if replaced:
        order = [name for name in order if name in sets or any(block.data == name for block in table.published)]
    for data in order:
        for row, row_spec in table.rows.items():
            for attention in table.attention or {"": {}}:
                group = make_group(table, budget, data, row, attention, sets.get(data, data), root, runs)
                groups[data, row, attention] = group
                if attention and row_spec.only and attention not in row_spec.only:
                    group.leave_out("none")
    for group in groups.values():
        if start := table.rows[group.row].start_from:
            group.start_from = groups[group.data, start, group.attention]
            if group.state == "planned" and group.start_from.state != "planned":
                group.leave_out(group.start_from.state)
    return list(groups.values())


def overrides_of(table: TableFile, budget: Budget, data: str, row: str, attention: str) -> dict[str, Any]:
    """Return the fields of a group of training runs that replace those of its recipe.

    Later parts take precedence over earlier ones. Arguments are those of `make_group`.
    """
    parts = (
        table.fields,
        table.data[data].fields,
        budget.fields,
        budget.each.get(data, {}),
        table.attention.get(attention, {}),
        table.rows[row].fields,
        budget.by_row.get(row, {}),
    )
    return current_recipe({name: value for part in parts for name, value in part.items()})


def make_group(
    table: TableFile,
    budget: Budget,
    data: str,
    row: str,
    attention: str,
    stands_for: str,
    root: Path | None,
    runs: Path,
) -> Group:
    """Return one group; arguments are as in `make_plan`."""
    data_spec, row_spec = table.data[data], table.rows[row]
    recipe = ROOT / (data_spec.recipe or table.recipe)
    if not recipe.is_file():
        recipe = existing_recipe(data_spec.recipe or table.recipe)
    overrides = overrides_of(table, budget, data, row, attention)
    group = Group(data, row, attention, stands_for, recipe, overrides, images=data_spec.images)
    if table.imports:  # a field `imports` alone would replace that of the recipe
        names = [*module_names(group.settings().get("imports")), *module_names(table.imports)]
        group.overrides["imports"] = list(dict.fromkeys(names))
    if data not in budget.sets(table) or (budget.rows is not None and row not in budget.rows):
        group.state = "not in this budget"
        return group
    import_modules(group.settings().get("imports"))  # these add an encoding, or another part
    try:
        with naming_imports("--imports MODULE, or imports: [MODULE] in the table"):
            check_group(group)
    except ValueError as error:
        pending = row_spec.pending or data_spec.pending
        if not pending:
            raise ValueError(f"{table.path}: {group.model}: {error}") from None
        group.state = f"not built: {pending}"
        return group
    from train.data.checks import check_views  # these import torchvision
    from train.data.sources import SOURCES

    source = str(group.settings().get("data.source", "arrow"))
    if source not in {**TASKS, **SOURCES}:
        group.state = f"not built: {data_spec.pending or f'there is no source of images {source!r}'}"
        return group
    try:
        check_views(Views.of(budget.views), source)
        check_measures(table, str(group.settings().get("model.vit.head", "class")))
        config = group.config()
        check_column_sizes(table, patch_and_image(config.patch_size, config.image_size)[0])
    except ValueError as error:
        raise ValueError(f"{table.path}: {group.model}: {error}") from None
    group.seeds = list(budget.seeds)
    if not budget.seeds:
        return group
    own = str(group.settings().get("data.root") or "data")
    images = place_images(source, root, own, bool(group.settings().get("data.grey")))
    if images is None:
        group.state = missing_images(source, root, own)
        return group
    group.overrides |= images
    group.folders = {seed: runs / f"{group.model}-seed{seed}" for seed in budget.seeds}
    return group


def check_group(group: Group) -> None:
    """Check the overrides of a group, once for each distinct model, by building it with one layer.

    Raises:
        ValueError: an unknown field, or values for which no model can be built.
    """
    overrides = group.overrides
    check_fields(overrides)
    model = {name: value for name, value in overrides.items() if name.startswith("model.")}
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
