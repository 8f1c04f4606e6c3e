"""The option `--views 5x3` (segments x crops): the answer to a video is the mean over its views."""

from __future__ import annotations

import argparse

from train.data.sizes import views_of


def add_views(parser: argparse.ArgumentParser) -> None:
    """Add the option `--views`; the default is one view."""
    parser.add_argument(
        "--views",
        type=views_of,
        metavar="SEGMENTSxCROPS",
        help="views of each video, averaged to one answer: 5x3 takes five clips of other frames, each with three crops "
        "(default: %(default)s)",
    )
