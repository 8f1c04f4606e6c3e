"""The option of several views of each video: `--views 5x3`, segments x crops, whose mean is one answer."""

from __future__ import annotations

import argparse

from train.data.sizes import views_of


def add_views(parser: argparse.ArgumentParser) -> None:
    """Add the option; the default, one view, is that of all evaluations."""
    parser.add_argument(
        "--views",
        type=views_of,
        metavar="SEGMENTSxCROPS",
        help="of each video, averaged to one answer: 5x3 takes five clips of other frames, and three crops of each "
        "(default: %(default)s)",
    )
