"""Hook of mkdocs: pages that stand outside docs/ become pages of the site, without a second copy of them.

`experiments/` is mounted as it is, with its CSV files and pictures, and its pages are put into the navigation.
CONTRIBUTING.md and CHANGELOG.md become contributing.md and changes.md. Links to these pages are rewritten; links to
source files, which the site does not have, become their paths.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
SHOWN = {".md", ".csv", ".png", ".yaml", ".py"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
# Order of the folders in the navigation; others follow by name.
FIRST = ["arrow", "pathfinder", "cifar10", "mnist", "imagenette", "encodings", "speed"]


def experiment_pages() -> list[Path]:
    """Return the README.md of all experiments: the index, then folder by folder, each before its parts."""
    pages = sorted((REPOSITORY / "experiments").rglob("README.md"))

    def order(page: Path) -> tuple[int, tuple[str, ...]]:
        parts = page.relative_to(REPOSITORY / "experiments").parent.parts
        return (-1 if not parts else FIRST.index(parts[0]) if parts[0] in FIRST else len(FIRST), parts)

    return sorted(pages, key=order)


def on_config(config: Any) -> Any:
    """Put the experiments into the navigation, under the title of each page."""
    for entry in config.nav:
        if "Experiments" in entry:
            entry["Experiments"] = []
            for page in experiment_pages():
                path = page.relative_to(REPOSITORY).as_posix()
                title = page.read_text().split("\n", 1)[0].removeprefix("# ")
                entry["Experiments"].append(path if path == "experiments/README.md" else {title: path})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Mount the files of experiments/ and the pages of the repository's root."""
    for path in sorted((REPOSITORY / "experiments").rglob("*")):
        if path.is_file() and path.suffix in SHOWN and "__pycache__" not in path.parts:
            uri = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for name, uri in MOVED.items():
        if uri != "index.md":
            files.append(File.generated(config, uri, content=(REPOSITORY / name).read_text()))
    return files


def source_of(uri: str) -> str:
    """Return where a page of the site stands in the repository."""
    for name, moved in MOVED.items():
        if uri == moved and uri != "index.md":
            return name
    return uri if uri.startswith("experiments/") else f"docs/{uri}"


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
