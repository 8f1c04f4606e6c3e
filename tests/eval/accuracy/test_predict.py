"""Answers of a model about image files: against the model by hand, at any size, with files that cannot be read."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from eval.accuracy.predict_report import notes, plot, summary
from eval.cli import main
from eval.plotting.contact_sheet import shorten
from eval.plotting.options import draw
from performer_string import Preprocessing, ViT
from performer_string.models.vit.packing import forward_packed
from performer_string.models.vit.patches import patchify
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.small_vit import vit as small_vit
from train.data.sizes import Size

NAMES = {"up", "left", "down", "right"}


def sharp(path):
    """A checkpoint whose answers differ from image to image."""
    content = torch.load(path)
    content["state_dict"]["vit.head.weight"].normal_(std=3)
    torch.save(content, path)
    return path


def by_hand(model, path, size):
    image = model.transform(size)(Image.open(path))[None]
    with torch.no_grad():
        return model(image).softmax(-1)[0]


def test_folders_and_images_at_a_size(tmp_path, images, capsys):
    run = sharp(save(tmp_path / "run")).parents[1]
    (images / "in" / "broken.png").write_bytes((images / "one.png").read_bytes()[:90])
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(run), str(images), str(images / "one.png"), "--size", "60x72", "--top", "2"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert f"skipped {images}/in/broken.png: image file is truncated" in err
    assert "1 of 5 files could not be read" in out
    header, rows = read(run / "results" / "predict.csv")
    assert header[0].startswith(f"# command: python -m eval predict {run} {images}")
    names = ("one", "in/broken", "in/four", "in/three", "in/two")
    assert [row["image"] for row in rows] == [f"{images}/{name}.png" for name in names]
    model = ViT.from_checkpoint(run)
    assert set(model.classes) == NAMES  # of a checkpoint that does not hold them
    for row in rows:
        if row["error"]:
            assert (row["class 1"], row["probability 1"], row["resolution"]) == ("", "", "")
            continue
        values, indices = by_hand(model, row["image"], (60, 72)).topk(2)
        assert [row["class 1"], row["class 2"]] == [model.classes[i] for i in indices]
        assert [float(row[f"probability {i}"]) for i in (1, 2)] == pytest.approx(values.tolist(), abs=2e-6)
        assert row["resolution"] == "60x72"
    assert len({row["probability 1"] for row in rows}) >= 4  # two may be as close to 1
    content = json.loads((run / "results" / "predict.json").read_text())
    assert [image["error"] is None for image in content["images"]] == [True, False, True, True, True]
    second = {"class": rows[0]["class 2"], "probability": float(rows[0]["probability 2"])}
    assert content["images"][0]["top"][1] == second
    assert (run / "results" / "predict.png").stat().st_size > 5000


def test_title_above_the_images(images):
    row = {"image": str(images / "one.png"), "resolution": Size(60, 60), "class 1": "up", "probability 1": 0.5}
    rows = [{**row, "error": ""}]  # as written before `resized`
    shown = SimpleNamespace(plot=plot)
    titled = draw(partial(shown.plot, rows), Namespace(width=None, title="A title"))
    FigureCanvasAgg(titled).draw()
    (title,) = [text for text in titled.texts if text.get_text() == "A title"]
    assert title.get_window_extent().y0 > titled.axes[0].get_window_extent().y1


@pytest.mark.parametrize("name", ["predict", "attention"])
def test_a_title_by_the_command_line(tmp_path, images, name, monkeypatch):
    """It stands above the pictures and what else is written, within the figure."""
    figures = []
    monkeypatch.setattr("eval.plotting.style.save_plot", lambda figure, beside, formats: figures.append(figure) or [])
    run = save(tmp_path / "run")
    for title in ([], ["--title", "A title"]):
        main([name, str(run), str(images / "one.png"), "--out", str(tmp_path), *title])
    plain, titled = figures
    assert titled.get_suptitle().split("\n") == ["A title", *filter(None, [plain.get_suptitle()])]
    renderer = FigureCanvasAgg(titled).get_renderer()
    titled.draw(renderer)
    box = titled._suptitle.get_window_extent(renderer)
    assert box.y1 <= titled.bbox.height
    for axis in titled.axes:
        assert axis.get_tightbbox(renderer).y1 <= box.y0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": "softmax", "positions": "interpolate"},
        {"positions": "interpolate", "locality": "gaussian", "locality_options": {"sigma": 2.0}},
        {"attention": "performer-pytorch"},
        {"mask_blank_patches": True, "values": "lepe"},  # which takes images of one size alone
    ],
    ids=["linear", "interpolated", "decay", "performer-pytorch", "blank masked"],
)
def test_native_sizes_in_one_batch(tmp_path, images, changes, monkeypatch):
    packed: list[list[int]] = []

    def record(vit, batch, *others):
        packed.append([len(patchify(image[None], vit.patch)[0]) for image in batch])
        return forward_packed(vit, batch, *others)

    monkeypatch.setattr("performer_string.models.vit.model.forward_packed", record)
    path = sharp(save(tmp_path / "run", replace(CONFIG, **changes)))
    main(
        ["predict", str(path), str(images), "--native", "--fold", "--batch_size", "32", "--out", str(tmp_path / "out")]
    )
    rows = read(tmp_path / "out" / "predict.csv")[1]
    model = ViT.from_checkpoint(path)
    sizes = {"one": "60", "two": "72x96", "three": "120x60", "four": "12x192"}
    for row in rows:
        name = row["image"].rpartition("/")[2].removesuffix(".png")
        assert row["resolution"] == sizes[name]
        if name == "four":
            continue  # enlarged to a whole patch
        pixels = np.asarray(Image.open(row["image"]))
        height, width = (side // 12 * 12 for side in pixels.shape)
        top, left = (round((side - part) / 2) for side, part in zip(pixels.shape, (height, width), strict=True))
        middle = Image.fromarray(pixels[top : top + height, left : left + width])
        middle.save(tmp_path / "middle.png")
        expected = by_hand(model, tmp_path / "middle.png", (height, width))
        assert float(row["probability 1"]) == pytest.approx(float(expected.max()), abs=1e-5)
        assert row["class 1"] == model.classes[int(expected.argmax())]
    one_pass = [[16, 25, 48, 50]]  # "four", "one", "two" and "three", without padding
    assert packed == ([] if changes.get("mask_blank_patches") else one_pass)


def test_long_tables_are_cut():
    row = {"image": "one.png", "resolution": Size(60, 60), "class 1": "up", "probability 1": 0.75, "error": ""}
    rows = [{**row, "image": f"{number}.png"} for number in range(33)]
    assert summary(rows)[-1] == {"image": "29.png", "px": Size(60, 60), "1": "up 75.0 %"}
    assert notes(rows) == ["3 more are in the files below."]
    assert notes(rows[:30]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "none.png"], "there is no file or folder none.png"),
        (["RUN", "EMPTY"], "there is no image in the folder"),
        (["RUN", "IMAGES", "--size", "65"], "65 x 65 pixels is not divisible into patches of 12 x 12"),
        (["RUN", "IMAGES", "--size", "8x60x60"], "or height x width, like 96x128, not '8x60x60'"),
        (["RUN", "IMAGES", "--size", "60", "--native"], "--native: not allowed with argument --size"),
        (["RUN", "IMAGES", "--top", "0"], "a number of 1 or more"),
        (["EMPTY", "IMAGES"], "there is no checkpoint"),
    ],
)
def test_bad_arguments(tmp_path, images, arguments, message, capsys):
    (tmp_path / "empty").mkdir()
    paths = {"RUN": str(save(tmp_path / "run")), "IMAGES": str(images), "EMPTY": str(tmp_path / "empty")}
    with pytest.raises(SystemExit) as stop:
        main(["predict", *(paths.get(argument, argument) for argument in arguments)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "results").exists()


def test_a_model_that_does_not_say_how_its_images_were_normalised(tmp_path, images, capsys):
    path = save(tmp_path / "run")
    content = torch.load(path)
    content["ImageData"]["config"]["source"] = "mine"
    torch.save(content, path)
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(images)])
    assert "does not say how its images were normalised" in capsys.readouterr().err


def test_long_names_are_shortened():
    assert shorten("short.png") == "short.png"
    assert shorten("a" * 15 + "b" * 15, 11) == "aaaaa…bbbbb"


@pytest.mark.parametrize(
    ("positions", "options", "said"),
    [
        ("extrapolate", [], True),
        ("extrapolate", ["--native"], False),
        ("extrapolate", ["--size", "60"], False),
        ("interpolate", [], False),
    ],
)
def test_shrunk_images_are_said_to_be(positions, options, said, tmp_path, images, capsys):
    run = save(tmp_path / "run", replace(CONFIG, positions=positions)).parents[1]
    main(["predict", str(run), str(images), *options])
    shrunk = "2 images were shrunk to 60 px. The model's positions extrapolate"  # "two" and "three"
    assert (shrunk in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("mode", "said"),
    [("L", ""), ("RGB", "1 image was made grey, as those of the training: the answers may mean little.\n")],
)
def test_coloured_images_of_a_model_of_grey_ones_are_said_to_be(mode, said, tmp_path, capsys):
    Image.new(mode, (300, 300)).save(tmp_path / "one.png")
    run = save(tmp_path / "run", replace(CONFIG, positions="interpolate"))
    main(["predict", str(run), str(tmp_path / "one.png")])
    error = capsys.readouterr().err
    assert said in error if said else "grey" not in error


def test_labels_have_probabilities_of_their_own_and_numbers_are_refused(tmp_path, images, capsys):
    """Both got the softmax: a model of one number had 100 % of class 0."""
    labels, number = (small_vit(in_channels=3, num_classes=count) for count in (2, 1))
    labels.preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3, ("hail", "rain"), outputs="labels")
    labels.save_pretrained(tmp_path / "labels")
    main(["predict", str(tmp_path / "labels"), str(images / "one.png"), "--out", str(tmp_path)])
    _, (row,) = read(tmp_path / "predict.csv")
    image = labels.transform()(Image.open(images / "one.png"))[None]
    expected = sorted(labels.eval()(image).sigmoid()[0].tolist(), reverse=True)
    assert [float(row[f"probability {rank}"]) for rank in (1, 2)] == pytest.approx(expected, abs=1e-6)
    for outputs in ("class", "numbers"):
        number.preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3, outputs=outputs)
        number.save_pretrained(tmp_path / outputs)
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(tmp_path / outputs), str(images / "one.png")])
        assert stop.value.code == 2
        assert "has 1 number as output, and no classes to choose from" in capsys.readouterr().err
