"""What README, docs/ and experiments/ say: links lead somewhere, the tour runs, and commands name what there is."""

from __future__ import annotations

import re
import shlex

import pytest
from training import REPOSITORY

from eval.__main__ import build_parser
from train.fields import undone
from train.plan import read_plan, select

PAGES = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md")) + sorted((REPOSITORY / "experiments").rglob("*.md"))


def anchors(page) -> set[str]:
    """Of a page's headings, as they are made on the web."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> list[str]:
    """The lines of all shell blocks, without their comments."""
    blocks = [block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]
    return sorted({re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        there = page.parent / path if path else page
        assert link.startswith("https:") or there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_the_tour_runs():
    (tour,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(tour, names)
    assert names["logits"].shape == (1, 10)
    assert names["several"].shape == (2, 10)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python -m train")])
def test_trainings_name_what_there_is(command, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    words = shlex.split(command)
    for path in (word for word in words if word.endswith(".yaml") and not word.startswith(("RUN", "pretrained/"))):
        assert (REPOSITORY / path).is_file()
    if words[2] == "train.sweep":
        own = words[4 : words.index("--")] if "--" in words else words[4:]
        only = own[own.index("--only") + 1 :] if "--only" in own else []
        runs = select(read_plan(REPOSITORY / words[3]), [word for word in only if "=" in word])
        assert runs
        assert not any(undone(run.overrides, words[4 + len(own) :]) for run in runs)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python -m eval ")])
def test_evaluations_have_these_options(command):
    places = {"--checkpoint ...": "--checkpoint A", "--resolutions ...": "--resolutions 1"}
    for place, example in places.items():
        command = command.replace(place, example)
    build_parser().parse_args(shlex.split(command)[3:])  # what does not parse ends the program
