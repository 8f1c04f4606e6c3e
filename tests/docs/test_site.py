"""The site builds without a warning, and needs no network."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.helpers.pages import EXPERIMENTS, REPOSITORY

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")


@pytest.mark.slow
def test_site_builds(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in EXPERIMENTS:
        assert (tmp_path / "site" / page.relative_to(REPOSITORY)).with_name("index.html").is_file()
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="(https?:[^"]*)"', page.read_text())
        assert not loaded, page
    home = (tmp_path / "site" / "index.html").read_text()
    assert "Five minutes with your own photographs" in home
    assert 'href="models/arrow-linear/index.html"' in home  # in the navigation
    assert 'href="experiments/arrow/cost/index.html"' in home
    assert (tmp_path / "site" / "models" / "arrow-linear" / "index.html").is_file()
    assert "performer_string.ViT" in (tmp_path / "site" / "api" / "models.html").read_text()
