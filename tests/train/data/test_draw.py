"""Pictures of generated tasks by the command line: contact sheets, and single images as a model gets them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from train.data.arrow import DIRECTIONS, ArrowTask
from train.data.draw import SIZES, main
from train.data.generated import GeneratedDataset
from train.data.tasks import TASKS


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_contact_sheet(name, tmp_path, capsys):
    main([name, "--out", str(tmp_path / "sheet.png")])
    assert np.array(Image.open(tmp_path / "sheet.png")).std() > 20
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    said = capsys.readouterr().out
    assert "drawn by our generator" in said
    assert f"{TASKS[name]().majority_accuracy():.1%}" in said
    assert all(each in said for each in TASKS[name].classes)


def test_every_task_has_a_size():
    assert SIZES.keys() == TASKS.keys()


def test_one_image_as_a_model_gets_it(tmp_path, capsys):
    path = tmp_path / "one.png"
    main(["arrow", "--example", "3", "--resolution", "60", "--split", "val", "--ink", "90", "--out", str(path)])
    image, label = GeneratedDataset(ArrowTask(ink=90), 60, 8, "val")[3]
    assert np.array_equal(np.array(Image.open(path)), image[0].numpy())
    assert image.max() == 90
    assert capsys.readouterr().out == f"{path}: {DIRECTIONS[label]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arrow", "--example", "-1"], "0 or more, not -1"),
        (["arrow", "--example", "0", "--out", "one.jpg"], "end --out in .png"),
        (["moving_arrow", "--example", "0"], "name no video"),
        (["arrow", "--resolution", "100"], "multiple of the cell"),
        (["pathfinder", "--resolution", "8"], "have no room"),
        (["cells", "--resolution", "8"], "need 50 pixels"),
        (["cells", "--resolution", "50x60"], "cells images are square"),
        (["cells", "--kinds", "9"], "kinds"),
        (["arrow", "--out", "sheet"], "an ending that says the format"),
        (["arrow", "--inc", "3"], "--inc"),
        (["arow"], "arow"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("error") == 1
    assert not list(tmp_path.iterdir())
