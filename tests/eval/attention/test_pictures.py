"""Pictures of attention: the rows of the evaluation against the model, and its figure with and without its image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from eval.attention.maps import attention_map, layers_of
from eval.attention.overlay import as_map, each_normalised, grouped, overlay_figure
from eval.attention.picture_files import place_pictures
from eval.attention.pictures_report import notes, summary
from eval.cli import main
from eval.plotting.style import paper_style
from eval.redraw import read_results
from performer_string import ViT
from tests.helpers.checkpoints import CONFIG, read, save
from tests.helpers.tiny_images import write_mnist
from train.data.arrow import ArrowTask
from train.data.generated import GeneratedDataset
from train.data.module import ImageData
from train.data.sizes import Size


@pytest.fixture
def photograph(tmp_path):
    path = tmp_path / "photograph.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.slow
def test_two_models_over_an_image(tmp_path, photograph, capsys):
    runs = [save(tmp_path / "one").parents[1], save(tmp_path / "two", replace(CONFIG, pool="cls", depth=2))]
    sizes, place = ["60", "72x96"], ["--query", "0.99,0.3"]
    arguments = [str(runs[0]), str(photograph), str(runs[1]), "--resolutions", *sizes, "--kind", "query", "rollout"]
    main(["attention", *arguments, *place])
    assert "effective patches" in capsys.readouterr().out
    name, rows = read_results(tmp_path / "results" / "attention.csv")
    assert name == "attention"
    found = grouped(rows)
    expected = [(k, m, Size.of(s)) for m in ("one", "two") for s in sizes for k in ("query", "rollout")]
    assert list(found) == expected
    for (kind, model, size), layers in found.items():
        vit = ViT.from_checkpoint(runs[model == "two"])
        image = vit.transform(size)(Image.open(photograph))
        grid = vit.grid(*size)
        maps = attention_map(vit, layers_of(vit, image), grid, kind, (0.99, 0.3))
        assert sorted(layers) == list(range(len(vit.blocks)))
        for layer, of_layer in layers.items():
            assert as_map(of_layer) == pytest.approx(maps[layer].numpy(), rel=1e-4)
            assert of_layer[0]["query"] == f"{grid[0] - 1},{int(0.3 * grid[1])}"
            label, _, percent = of_layer[0]["answer"].removesuffix(" %").partition(" ")
            with torch.no_grad():
                answer = vit(image[None]).softmax(-1)[0]
            assert (label, float(percent)) == (
                vit.classes[int(answer.argmax())],
                pytest.approx(100 * float(answer.max()), abs=0.6),
            )
    assert (tmp_path / "results" / "attention.png").stat().st_size > 10000
    axes = overlay_figure(rows).axes
    shapes = [axis.images[1].get_array().shape for axis in axes if len(axis.images) == 2]
    assert sorted(set(shapes)) == [(5, 5), (6, 8)]
    assert len(shapes) == 4 * 1 + 4 * 2  # of the first model the second layer is left out
    assert axes[-1].get_ylabel() == "weight relative to equal weights"


def test_colours_are_relative_to_equal_weights():
    row = {"kind": "query", "model": "m", "resolution": Size.of(24), "layer": 0, "head": "mean", "query": "0,1"}
    row |= {"image": "none.png", "answer": "up 50 %"}
    weights = [[0.1, 0.6], [0.2, 0.1]]
    rows = [{**row, "row": y, "column": x, "weight": w} for y, line in enumerate(weights) for x, w in enumerate(line)]
    axis = next(axis for axis in overlay_figure(rows).axes if len(axis.images) == 2)
    assert axis.images[1].get_array().tolist() == pytest.approx(np.array([[0.4, 2.4], [0.8, 0.4]]))
    assert axis.images[1].norm.vmax == pytest.approx(2.4)
    (marked,) = axis.lines
    assert (marked.get_xdata()[0], marked.get_ydata()[0]) == (1, 0)


def test_each_map_may_have_its_own_scale():
    """As in LieRE's figures 10 and 11: from 0, blue, to 1, red, also where all weights of a map are equal."""
    row = {"kind": "class", "model": "m", "resolution": Size.of(24), "head": "mean", "query": "0,1"}
    row |= {"image": "none.png", "answer": "up 50 %", "normalise": "map"}
    layers = [[[0.1, 0.6], [0.2, 0.1]], [[0.25, 0.25], [0.25, 0.25]]]
    places = [(layer, y, x) for layer in (0, 1) for y in (0, 1) for x in (0, 1)]
    rows = [{**row, "layer": n, "row": y, "column": x, "weight": layers[n][y][x]} for n, y, x in places]
    figure = overlay_figure(rows)
    drawn = [axis.images[1] for axis in figure.axes if len(axis.images) == 2]
    assert drawn[0].get_array().tolist() == [pytest.approx([0, 1]), pytest.approx([0.2, 0])]
    assert drawn[1].get_array().tolist() == [[0, 0], [0, 0]]
    low, high = (image.cmap(image.norm(value)) for image, value in zip(drawn, (0.0, 1.0), strict=True))
    assert low[2] > 2 * low[0]
    assert high[0] > 2 * high[2]
    assert [text.get_text() for text in figure.axes[-1].get_yticklabels()] == ["0", "0.5", "1"]
    assert "from the lowest (0) to the highest (1) of each map" in figure.get_supxlabel().replace("\n", " ")


def test_colours_of_nearly_equal_weights():
    """They stand in the middle of a scale from half to twice, without an end that is never reached."""
    row = {"kind": "query", "model": "m", "resolution": Size.of(24), "layer": 0, "head": "mean", "query": "0,1"}
    row |= {"image": "none.png", "answer": "up 50 %", "weight": 0.25}
    figure = overlay_figure([{**row, "row": y, "column": x} for y in range(2) for x in range(2)])
    assert len(figure.axes) == 2  # a layer and the colour bar: no panel for an image that is not there
    (axis,) = [axis for axis in figure.axes if len(axis.images) == 2]
    assert (axis.images[1].norm.vmin, axis.images[1].norm.vmax) == (0.5, 2)
    assert [text.get_text() for text in figure.axes[1].get_yticklabels()] == ["0.5", "1", "2"]


def above_and_below(**changes) -> tuple[list[str], str]:
    """Return the lines above the first column of a figure, and its note."""
    row = {"kind": "query", "model": "m", "resolution": Size.of(24), "layer": 0, "head": "mean", "query": "0,1"}
    row |= {"image": "none.png", "answer": "french horn 50 %", "weight": 0.25, **changes}
    figure = overlay_figure([{**row, "row": y, "column": x} for y in range(2) for x in range(2)])
    return figure.axes[0].get_title().replace("\xa0", " ").split("\n"), figure.get_supxlabel().replace("\n", " ")


def test_many_columns_are_drawn_in_blocks():
    """A figure of 24 columns would be 36 inches wide."""
    row = {"kind": "class", "resolution": "8", "layer": 0, "head": "mean", "image": "a.png", "query": "0,0"}
    row |= {"answer": "cat 90 %", "picture": "", "weight": 0.25}
    models = [f"model {number:02}" for number in range(9)]
    rows = [{**row, "model": name, "row": y, "column": x} for name in models for y in range(2) for x in range(2)]
    figure = overlay_figure(rows)
    assert [bool(axis.images) for axis in figure.axes[:-1]] == [True] * 9 + [False]  # without the colour bar
    assert [axis.get_title().partition("\n")[0] for axis in figure.axes[:9]] == models
    assert [number for number, axis in enumerate(figure.axes) if axis.get_ylabel() == "layer 0"] == [0, 5]


@pytest.mark.parametrize(
    ("width", "size", "models"), [(3.25, "24", 4), (3.25, "24", 9), (3.25, "48x12", 4), (None, "48x12", 4)], ids=str
)
def test_titles_wrap_and_keep_apart(width, size, models):
    """Four columns of a narrow figure had "answer: t...h 38 %" over each other, and the line of the query was cut."""
    row = {"kind": "query", "resolution": Size.of(size), "layer": 0, "head": "mean", "image": "a.png", "query": "0,0"}
    row |= {"answer": "english springer spaniel 38 %", "picture": "", "weight": 0.125}
    names = [f"a-long-name-with-encoding{number:02}" for number in range(models)]
    places = [(y, x) for y in range(4 if size == "48x12" else 2) for x in range(2)]
    rows = [{**row, "model": name, "row": y, "column": x} for name in names for y, x in places]
    with paper_style(width):
        figure = overlay_figure(rows)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        titles = [axis.title for axis in figure.axes[:-1] if axis.get_title()]
        boxes = [title.get_window_extent(canvas.get_renderer()) for title in titles]
    assert len(titles) == models
    for title, box in zip(titles, boxes, strict=True):
        assert not any(box.overlaps(other) for other in boxes if other is not box)
        text = title.get_text().replace("\n", " ")
        assert "query: orange square" in text
        assert " 38\xa0%" in text
        assert box.x0 >= 0


def test_the_figure_says_what_it_shows():
    lines, note = above_and_below()
    assert lines == ["m", "24 px", "answer: french horn", "50 %", "query: orange square"]
    assert note.startswith("none.png; colours: weight of a patch, where 1 is that of equal weights; query: the patch")
    lines, note = above_and_below(kind="rollout", image="test image 3: church")
    assert lines[2:] == ["answer: french horn", "50 %", "truth: church", "rollout"]
    assert note.startswith("test image 3; colours")


def test_a_map_that_shows_nothing_says_so():
    """Beneath the picture and the table: an untrained model attends to all patches alike."""
    _, note = above_and_below()
    assert "m at 24 px, query: the weights of each layer are within 0.1 % of each other" in note
    row = {"kind": "query", "model": "m", "resolution": Size.of(24), "layer": 0, "row": 0, "column": 0, "weight": 0.5}
    (said,) = notes([row, {**row, "column": 1, "weight": 0.54}])
    assert "within 8 % of each other, so that the picture is nearly uniform, as that of an untrained model" in said
    assert notes([row, {**row, "column": 1, "weight": 0.56}]) == []
    layers = [{**row, "layer": 1}, {**row, "layer": 1, "column": 1, "weight": 0.1}]
    assert notes([row, {**row, "column": 1}, *layers]) == []  # one of them shows something


def test_the_table_has_the_sum_of_weights_where_it_is_not_one():
    row = {"kind": "query", "model": "m", "resolution": Size.of(24), "layer": 0, "query": "0,1"}
    shares = {0.25: False, 0.2: True}  # the rest is that of a class token
    for weight, there in shares.items():
        rows = [{**row, "weight": weight, "row": y, "column": x} for y in range(2) for x in range(2)]
        assert ("weight of all patches" in summary(rows)[0]) == there


def test_a_file_that_is_no_image(tmp_path, capsys):
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(SystemExit) as stop:
        main(["attention", str(save(tmp_path / "run")), str(tmp_path / "text.jpg")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/text.jpg was not read: no image, or of an unknown kind.\n"


def test_an_example_of_the_arrow_task(tmp_path):
    path = save(tmp_path / "run", replace(CONFIG, pool="cls", depth=3))
    main(["attention", str(path), "--example", "2", "--resolutions", "84", "--layer", "2", "0", "--head", "1"])
    rows = read(tmp_path / "run" / "results" / "attention.csv")[1]
    assert {row["kind"] for row in rows} == {"class"}  # by default, where there is a class token
    assert [row["layer"] for row in rows[:: 7 * 7]] == ["2", "0"]
    pixels, label = GeneratedDataset(ArrowTask(), 84, 3, "test")[2]
    vit = ViT.from_checkpoint(path)
    assert {row["image"] for row in rows} == {f"test image 2: {vit.classes[label]}"}
    maps = attention_map(vit, layers_of(vit, vit.transform(84)(pixels)), (7, 7), "class", (0, 0), head=1)
    assert [float(row["weight"]) for row in rows[: 7 * 7]] == pytest.approx(maps[2].flatten().tolist(), rel=1e-4)
    (file,) = (tmp_path / "run" / "results" / "pictures").iterdir()
    assert {row["picture"] for row in rows} == {file.name}
    assert np.array_equal(np.asarray(Image.open(file)), pixels[0].numpy())


@pytest.mark.parametrize("source", ["an example", "an image"])
def test_the_figure_is_the_same_when_drawn_again(tmp_path, photograph, source):
    """After the image is gone."""
    run, out, again = save(tmp_path / "run"), tmp_path / "out", tmp_path / "again"
    image = ["--example", "1"] if source == "an example" else [str(photograph), "--normalise", "map"]
    formats = ["--format", "png", "pdf", "svg"]
    main(["attention", str(run), *image, "--resolutions", "60", "84", "--out", str(out), *formats])
    photograph.unlink()
    main(["plot", str(out / "attention.csv"), "--out", str(again), *formats])
    for ending in ("png", "pdf", "svg"):
        name = f"attention.{ending}"
        assert (again / name).read_bytes() == (out / name).read_bytes()
    assert each_normalised(read_results(out / "attention.csv")[1]) == (source == "an image")
    rows = place_pictures(read_results(out / "attention.csv")[1], out / "attention.csv")
    assert len(overlay_figure(rows).axes) == 5  # images, maps and the colour bar


def test_a_missing_picture_is_named(tmp_path, photograph, capsys):
    main(["attention", str(save(tmp_path / "run")), str(photograph), "--resolutions", "60", "--out", str(tmp_path)])
    photograph.unlink()
    (file,) = (tmp_path / "pictures").iterdir()
    file.unlink()
    main(["plot", str(tmp_path / "attention.csv")])
    assert f"{file} is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "give one image, or --example N for one of the training's test images, not 0 images."),
        (["RUN", "IMAGE", "IMAGE"], "not 2 images"),
        (["RUN", "IMAGE", "--example", "1"], "not 1 images and --example"),
        (["IMAGE"], "give the folder of a run, or a checkpoint"),
        (["RUN", "IMAGE", "--kind", "class"], "run has no class token (pool: cls): take --kind query or rollout"),
        (["RUN", "IMAGE", "--head", "2"], "run has 2 heads, counted from 0: no 2"),
        (["RUN", "IMAGE", "--layer", "0", "1"], "run has 1 layers, counted from 0: no 1"),
        (
            ["RUN", "IMAGE", "--query", "3,4"],
            "shares of the height and width, each from 0 to 1, like 0.25,0.5, not '3,4'",
        ),
        (["RUN", "IMAGE", "--resolutions", "65"], "not divisible into patches"),
        (["RUN", "none.png"], "error: there is no image none.png."),
        (["RUN", "FOLDER"], "is a folder of images, and one image is drawn over: give IMAGE."),
        (["nowhere", "IMAGE"], "there is no checkpoint nowhere"),
    ],
)
def test_bad_arguments(tmp_path, photograph, arguments, message, capsys):
    paths = {"RUN": str(save(tmp_path / "run")), "IMAGE": str(photograph), "FOLDER": str(tmp_path)}
    with pytest.raises(SystemExit) as stop:
        main(["attention", *(paths.get(argument, argument) for argument in arguments)])
    assert stop.value.code == 2
    assert message.replace("IMAGE", paths["IMAGE"]) in capsys.readouterr().err
    assert not (tmp_path / "run" / "results").exists()


@pytest.mark.slow
def test_a_dense_model_answers_at_the_query(tmp_path, photograph):
    config = replace(CONFIG, image_size=64, patch_size=8, num_classes=3, head="dense")
    data = ImageData("cells", val_size=4, size=[64, 64], workers=0, batch_size=4)
    run = save(tmp_path / "run", config, data).parents[1]
    main(["attention", str(run), "--example", "1", "--query", "0.2,0.7", "--out", str(tmp_path / "out")])
    _, rows = read(tmp_path / "out" / "attention.csv")
    vit = ViT.from_checkpoint(run)
    data.setup("test")
    image, _ = data.held_out("test", [64, 64], 2)[1]
    with torch.no_grad():
        probabilities = vit(data.normalise(image[None]))[0].softmax(0)[:, 8 + 4, 5 * 8 + 4]
    assert rows[0]["query"] == "1,5"
    number = int(probabilities.argmax())
    assert rows[0]["answer"] == f"{number} at the query {100 * float(probabilities[number]):.0f} %"
    assert rows[0]["image"] == "test image 1"
    assert (tmp_path / "out" / "attention.png").stat().st_size > 500


def test_an_example_is_the_image_that_confusion_numbers(tmp_path):
    write_mnist(tmp_path, 40)
    data = ImageData("mnist", str(tmp_path), val_size=4, size=[24, 24], workers=0, batch_size=8)
    data.setup("test")
    run = save(tmp_path / "run", replace(CONFIG, image_size=24, num_classes=10), data).parents[1]
    out = tmp_path / "out"
    main(["confusion", str(run), "--out", str(out)])
    (answers,) = out.glob("confusion/predictions-*.csv")
    order = [int(row["image"]) for row in read(answers)[1]]
    assert order != sorted(order)  # in one fixed random order
    chosen = read(answers)[1][order.index(3)]
    main(["attention", str(run), "--example", "3", "--out", str(out)])
    row = read(out / "attention.csv")[1][0]
    assert row["image"] == f"test image 3: {chosen['truth']}"
    shown, _ = data.held_out("test", [24, 24])[order.index(3)]
    assert np.array_equal(np.asarray(Image.open(out / "pictures" / row["picture"])), shown[0].numpy())
