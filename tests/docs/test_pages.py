"""Pages are short and plain, and their links lead somewhere."""

from __future__ import annotations

import re

import pytest

from performer_string import FORMER_NAMES
from performer_string.utils import renames
from tests.helpers.pages import DOCS, PAGES, REPOSITORY, anchors, name_of, prose, sentences

WORDS = 25  # of a sentence at most; numbers do not count
OF_TODAY = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *DOCS]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert link.startswith("https:") or target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_of_the_docs_is_in_the_navigation():
    navigation = (REPOSITORY / "mkdocs.yml").read_text()
    for page in DOCS:
        assert page.relative_to(REPOSITORY / "docs").as_posix() in navigation, page


def test_readme_has_at_most_130_lines():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 130


def test_pages_have_at_most_250_lines():
    lengths = {name_of(page): len(page.read_text().splitlines()) for page in PAGES}
    assert {name: lines for name, lines in lengths.items() if lines > 250} == {}


def words(sentence: str) -> int:
    """Count the words of a sentence; numbers do not count."""
    return len(re.findall(r"[^\W\d_][\w'-]*", sentence))


def test_sentences_are_short():
    long = [f"{name_of(page)}: {each}" for page in PAGES for each in sentences(page) if words(each) > WORDS]
    assert not long, "\n".join(long)


def test_long_sentences_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nShort one. {'word ' * 26}end.\n\n| {'cell ' * 30} |\n\n`a`, `b` and `c` are names.\n")
    assert [len(sentence.split()) for sentence in sentences(page)] == [2, 27, 3]


def test_former_names_are_gone():
    """Options and classes have their names of today; CHANGELOG.md and experiments say what the former ones are."""
    former = "|".join(map(re.escape, [*renames.FIELDS, *FORMER_NAMES, *renames.WEIGHTS]))
    found = {name_of(page): re.findall(rf"(?<!\w)(?:{former})(?!\w)", page.read_text()) for page in OF_TODAY}
    assert {name: names for name, names in found.items() if names} == {}


def test_files_of_the_repository_that_pages_name_exist():
    named = re.compile(r"`((?:performer_string|eval|docs|tests|tools)/[\w./-]+|train/[\w/-]+\.(?:py|yaml))`")
    found = {name_of(page): [x for x in named.findall(page.read_text()) if "." in x] for page in OF_TODAY}
    assert sum(map(len, found.values())) > 10
    gone = {name: [x for x in paths if not (REPOSITORY / x).exists()] for name, paths in found.items()}
    assert {name: paths for name, paths in gone.items() if paths} == {}
