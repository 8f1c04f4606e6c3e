"""Publish the model of a run as a folder: weights, configuration, and a model card.

The model is tested first, at the sizes of its training or those of `--resolutions`, and the card has the results. The
folder contains no paths of this machine. `ViT.from_pretrained(DIR)` loads it, evaluations take it as --checkpoint DIR,
and a training as --init_from DIR.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from train.command.suggesting_parser import SuggestingParser
from train.data.sizes import image_size
from train.utils.errors import one_message
from train.utils.imports import import_modules, naming_imports
from train.utils.ranges import at_least


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m train.publish`."""
    parser = SuggestingParser(prog="python -m train.publish", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write")
    parser.add_argument("--name", default="", help="name of the model, and title of its card; default: the name of DIR")
    parser.add_argument("--best", action="store_true", help="publish the run's best checkpoint instead of its last")
    parser.add_argument("--dataset", default="", help="description of the training data; default: name of the source")
    parser.add_argument("--licence", "--license", default="", help="an SPDX name, such as apache-2.0")
    parser.add_argument("--limits", nargs="+", default=[], help="sentences on what the model is not for")
    parser.add_argument(
        "--resolutions", nargs="+", type=image_size, help="sizes for the test; default: those of validation"
    )
    parser.add_argument(
        "--images",
        type=at_least(0),
        default=0,
        help="number of test images; 0 for all (generated tasks: as in validation)",
    )
    parser.add_argument("--root", help="folder of the images, if not where they were in training")
    parser.add_argument("--skip_test", action="store_true", help="do not test: the card has only validation results")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="type of the weights (default: %(default)s)"
    )
    rounded = "round weights to bfloat16 in the file, which is half as large; the model computes in float32"
    parser.add_argument("--round", action="store_true", help=rounded)
    parser.add_argument("--imports", nargs="+", default=[], help="modules to import first, with additions to use")
    parser.add_argument("--overwrite", action="store_true", help="replace a model and a card in DIR")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder to the Hugging Face Hub too")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository there private")
    return parser


def is_licence(name: str) -> bool:
    """Return whether a licence is an SPDX name, in any case of letters, or the Hub's `other`."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        canonicalize_license_expression(name)
    except InvalidLicenseExpression:
        return name == "other"
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish a model; an error that a user can fix ends with one message and exit status 2."""
    options = build_parser().parse_args(arguments)
    with one_message(), naming_imports():
        # These import torch and Lightning, and help does without.
        from performer_string.models.files.paths import CARD, CONFIG, WEIGHTS
        from performer_string.models.files.weights import PublishedError
        from train.publishing import check_packages, publish

        import_modules(options.imports)
        check_packages(options.push)
        if options.licence and not is_licence(options.licence):
            sys.stderr.write(f"{options.licence} is no SPDX name of a licence: see https://spdx.org/licenses\n")
        vit, details = publish(options)
        folder = options.folder.expanduser()
        kilobytes = (folder / WEIGHTS).stat().st_size / 1000
        print(f"{folder}: {WEIGHTS} ({kilobytes:,.0f} kB), {CONFIG}, {CARD}")
        if options.push:
            try:
                print(vit.push_to_hub(options.push, details, private=options.private))
            except PublishedError as error:
                private = ["--private"] if options.private else []
                later = shlex.join(["hf", "upload", options.push, str(folder), *private])
                raise PublishedError(f"{error}\n{folder} is complete. Upload it later by: {later}") from error


if __name__ == "__main__":
    main()
