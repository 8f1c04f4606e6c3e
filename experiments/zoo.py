"""Fill the table of models/README.md from the `config.json` of each model there.

python -m experiments.zoo            # rewrite the table (`make tables`)
python -m experiments.zoo --check    # only report whether it is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from performer_string.models.config import ViTConfig
from performer_string.models.files.card import architecture
from performer_string.models.files.metrics import accuracy_cells, table
from performer_string.models.files.paths import CONFIG, WEIGHTS
from performer_string.models.files.published import read_config

ZOO = Path(__file__).resolve().parents[1] / "models"
COLUMNS = ("model", "trained on", "parts", "file", "test: pixels", "tokens", "accuracy in %, 95 % interval", "images")


def models(zoo: Path = ZOO) -> list[Path]:
    """Return the folders of the models, ordered by name."""
    return sorted(path.parent for path in zoo.glob(f"*/{CONFIG}"))


def build(zoo: Path = ZOO) -> str:
    """Return the table, with a row for each model and each size at which it was tested."""
    rows: list[list[str]] = []
    for folder in models(zoo):
        content = read_config(folder)
        card = (folder / "README.md").read_text(encoding="utf-8")
        dataset = re.search(r"^\| trained on \| (.*) \|$", card, re.MULTILINE)
        size = f"{(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB"
        name, parts = f"[{folder.name}]({folder.name}/README.md)", architecture(ViTConfig.of_checkpoint(content["vit"]))
        first = [name, dataset[1] if dataset else "", parts, size]
        for metric in (each for each in content["metrics"] if each["split"] == "test"):
            rows.append([*first, *accuracy_cells(metric)[1:]])
            first = [""] * 4
    return "\n".join(table(COLUMNS, rows)) + "\n"


def refill(page: Path, name: str, content: str, program: str, arguments: Sequence[str] | None) -> int:
    """Write what stands between `<!-- name -->` and `<!-- end name -->` in a page, or check it; return the exit status.

    Args:
        page: the page.
        name: name of the block.
        content: what is to stand there.
        program: module that is run, as `experiments.zoo`.
        arguments: arguments of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=f"Fill the list in {page.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the list is out of date")
    options, text = parser.parse_args(arguments), page.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end {name} -->)", re.DOTALL)
    filled = block.sub(lambda match: match[1] + content + match[3], text)
    if filled == text:
        return 0
    if options.check:
        sys.stderr.write(f"{page} is out of date: python -m {program}\n")
        return 1
    page.write_text(filled, encoding="utf-8")
    return 0


def main(arguments: Sequence[str] | None = None, zoo: Path = ZOO) -> int:
    """Write the table, or check it; return the exit status."""
    return refill(zoo / "README.md", "zoo", build(zoo), "experiments.zoo", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
