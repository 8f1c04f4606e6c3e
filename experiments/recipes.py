"""Fill the list of docs/guides/recipes.md from the first lines of the recipes in train/configs.

python -m experiments.recipes            # rewrite the list (`make tables`)
python -m experiments.recipes --check    # only report whether it is out of date
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.zoo import refill
from performer_string.models.files.metrics import table

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE, RECIPES = REPOSITORY / "docs" / "guides" / "recipes.md", REPOSITORY / "train" / "configs"
PARTS = ("What it shows", "What differs", "Expected", "Time", "Majority baseline", "Command")
COLUMNS = ("recipe", "what it shows", "expected", "time")


def header(recipe: Path) -> dict[str, str]:
    """Return the parts of the first lines of a recipe, by their names in `PARTS`."""
    lines = []
    for line in recipe.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    split = re.split(rf"\b({'|'.join(PARTS)})( \([^)]*\))?: ", " ".join(lines))
    return {name: text.strip() for name, text in zip(split[1::3], split[3::3], strict=True)}


def build(recipes: Path = RECIPES) -> str:
    """Return the list, with a row for each recipe in the order of their names."""
    rows = []
    for recipe in sorted(recipes.glob("*.yaml")):
        parts = header(recipe)
        shown = (first_sentence(parts[name]) for name in ("What it shows", "Expected", "Time"))
        rows.append([f"[`{recipe.stem}`](../../train/configs/{recipe.name})", *shown])
    return "\n".join(table(COLUMNS, rows)) + "\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return re.split(r"(?<=[.?])\s+(?=[A-Z`])", text)[0].rstrip(".")


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Write the list, or check it; return the exit status."""
    return refill(page, "recipes", build(), "experiments.recipes", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
