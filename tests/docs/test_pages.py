"""Pages are short and plain, and their links lead somewhere."""

from __future__ import annotations

import re

import pytest

from tests.helpers.pages import DOCS, PAGES, REPOSITORY, anchors, name_of, prose, sentences

WORDS = 25  # of a sentence at most; numbers do not count


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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_have_at_most_250_lines(page):
    assert len(page.read_text().splitlines()) <= 250


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_are_short(page):
    long = [sentence for sentence in sentences(page) if len(re.findall(r"[^\W\d_][\w'-]*", sentence)) > WORDS]
    assert not long, "\n".join(long)


def test_long_sentences_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nShort one. {'word ' * 26}end.\n\n| {'cell ' * 30} |\n\n`a`, `b` and `c` are names.\n")
    assert [len(sentence.split()) for sentence in sentences(page)] == [2, 27, 3]


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *DOCS], ids=name_of)
def test_former_names_are_gone(page):
    """Options and modules have their names of today; CHANGELOG.md and experiments say what the former ones are."""
    for name in (
        "tied_start",
        "log_scale",
        "position_frame",
        "naive.py",
        "docs/extending.md",
        "performer_string/kernels",
    ):
        assert name not in prose(page), name
