"""Hook of mkdocs: pages that stand outside docs/ become pages of the site, without a second copy of them.

README.md is the home page. `experiments/` and the cards of `models/` are mounted as they are, with their CSV files and
pictures, and put into the navigation. CONTRIBUTING.md and CHANGELOG.md become contributing.md and changes.md. Links to
these pages are rewritten; links to source files, which the site does not have, become their paths.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
MOUNTED = ("experiments", "models")
SHOWN = {".md", ".csv", ".png", ".yaml", ".py"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
INTERVAL = re.compile(r"\((\d[\d.]*)-(\d[\d.]*)\)")  # such as (99.2-100.0)
# Folders of experiments in the order of the navigation, and titles of those with several pages; others follow by name.
SECTIONS = {
    "arrow": "Arrow task",
    "pathfinder": "Pathfinder",
    "cifar10": "CIFAR-10",
    "mnist": "MNIST",
    "imagenette": "Imagenette",
    "encodings": "Encodings",
    "speed": "Speed",
}


def title_of(page: Path) -> str:
    """Return the first heading of a page."""
    return next(line for line in page.read_text().splitlines() if line.startswith("# ")).removeprefix("# ")


def entry(page: Path) -> dict[str, str]:
    """Return a page of the repository as an entry of the navigation."""
    return {title_of(page): page.relative_to(REPOSITORY).as_posix()}


def experiments() -> list[Any]:
    """Return the navigation of the experiments: the index, then a section for each folder with its page first."""
    folder = REPOSITORY / "experiments"
    names = {page.parent.relative_to(folder).parts[0] for page in folder.glob("*/**/README.md")}
    sections: list[Any] = ["experiments/README.md"]
    for name in [*SECTIONS, *sorted(names - {*SECTIONS})]:
        pages = [entry(page) for page in sorted((folder / name).rglob("README.md"))]
        sections.append({SECTIONS.get(name, name): pages} if len(pages) > 1 else pages[0])
    return sections


def on_config(config: Any) -> Any:
    """Put the experiments and the trained models into the navigation, under the title of each page."""
    cards = [entry(page) for page in sorted((REPOSITORY / "models").glob("*/README.md"))]
    filled = {"Experiments": experiments(), "Trained models": ["models/README.md", *cards]}
    for part in config.nav:
        part.update({name: pages for name, pages in filled.items() if name in part})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Mount the files of experiments/ and models/, and the pages of the repository's root."""
    for path in sorted(path for folder in MOUNTED for path in (REPOSITORY / folder).rglob("*")):
        if path.is_file() and path.suffix in SHOWN and "__pycache__" not in path.parts:
            uri = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for name, uri in MOVED.items():
        files.append(File.generated(config, uri, content=(REPOSITORY / name).read_text()))
    return files


def source_of(uri: str) -> str:
    """Return where a page of the site stands in the repository."""
    for name, moved in MOVED.items():
        if uri == moved:
            return name
    return uri if uri.startswith(tuple(f"{folder}/" for folder in MOUNTED)) else f"docs/{uri}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    source = source_of(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        image, text, link, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"[a-z]+:", link):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        target = MOVED.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            if not (REPOSITORY / path).exists():
                return match[0]
            return f"`{path}`" if text == path else f"{text} (`{path}`)"
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"{image}[{text}]({relative}{anchor})"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Keep each interval on one line, by a hyphen that does not break."""
    return INTERVAL.sub("(\\1\N{NON-BREAKING HYPHEN}\\2)", html)
