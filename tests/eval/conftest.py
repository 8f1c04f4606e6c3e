"""Images for evaluations: of several sizes, with hidden files and a text among them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

SIZES = {"one": (60, 60), "in/two": (75, 100), "in/three": (131, 64), "in/four": (7, 200)}  # height and width


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for name, size in SIZES.items():
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(path)
    (tmp_path / "images" / ".thumbs").mkdir()
    for hidden in (".thumbs/one.png", ".two.png"):
        Image.new("L", (60, 60)).save(tmp_path / "images" / hidden)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"
