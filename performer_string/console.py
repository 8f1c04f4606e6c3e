"""The installed command `performer-string`: training and evaluation, from any folder."""

from __future__ import annotations

import importlib


def main() -> None:
    """Run the commands of the clone that is installed.

    Raises:
        SystemExit: the library was installed without a clone, so that there is no training and no evaluation.
    """
    try:
        console = importlib.import_module("eval.console")  # by its name, since the library does not know its trainer
    except ModuleNotFoundError as error:
        if error.name not in ("eval", "eval.console"):
            raise
        raise SystemExit(
            "error: this is an installation of the library alone. Training and evaluation need a clone of the "
            "repository: run pip install -e '.[train]' in it."
        ) from None
    console.main()
