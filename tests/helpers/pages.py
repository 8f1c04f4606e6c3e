"""The pages of the documentation, and what stands in them: code, commands, links, sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOT_PAGES = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
EXPERIMENTS = sorted((REPOSITORY / "experiments").rglob("README.md"))
ZOO = REPOSITORY / "models" / "README.md"
PAGES = [*ROOT_PAGES, *DOCS, *EXPERIMENTS, ZOO]

BLOCK = re.compile(r"(?:<!-- docs: needs ([^\n]*) -->\n)?```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        language: after the opening fence.
        text: the code.
        needs: what a comment above it says that it needs, such as a download; empty for nothing.
    """

    language: str
    text: str
    needs: str


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of code of a page in a language."""
    every = [Block(m[2], m[3], m[1] or "") for m in BLOCK.finditer(page.read_text())]
    return [block for block in every if block.language == language]


def commands(page: Path) -> list[str]:
    """Return the lines of all shell blocks of a page, without their comments."""
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]


def prose(page: Path) -> str:
    """Return a page without code, comments, front matter and references of the API."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```\n", "\n", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^:::.*$", "", text, flags=re.MULTILINE)


def sentences(page: Path) -> list[str]:
    """Return the sentences of a page's paragraphs and list items, without headings and tables.

    A list of names in code font counts as one word, and so does a link.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(page)):
        lines = [line.strip() for line in paragraph.splitlines()]
        lines = [line for line in lines if not line.startswith(("|", "#", "!!!", "!["))]
        text = re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(lines))
        text = re.sub(r"`[^`]*`(?:(?:, | and | or |, and )`[^`]*`)*", "NAMES", text)
        text = re.sub(r"!?\[[^\]]*\]\([^)]*\)", "LINK", text)
        found += re.split(r"(?<=[.:;?!])[)*]*\s+(?=[\w*\"(])", text)
    return [sentence for sentence in found if sentence.strip()]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made on the web."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
