"""Videos tested by several views: one answer for each video, in every evaluation of accuracy."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from eval.accuracy.confusion_matrix import draw_matrix, read_matrix
from eval.cli import main
from eval.papers.results import Results
from eval.report import read_csv
from tests.helpers.checkpoints import CONFIG, save
from tests.helpers.videos import write_video
from train.checkpoint import load_trained
from train.data.module import ImageData
from train.data.sizes import ONE, Size, Views
from train.intervals import wilson_interval
from train.testing import measure_images

VIDEO = replace(CONFIG, image_size=[4, 24, 24], patch_size=[2, 12, 12], in_channels=3, num_classes=3)
COUNT = 5  # videos of a class


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folders of two untrained models of videos of noise, whose answers differ from view to view."""
    pytest.importorskip("av")
    root = tmp_path_factory.mktemp("runs")
    for number, label in enumerate(("a", "b", "c")):
        for video in range(COUNT):
            for split in ("train", "test"):
                write_video(root / "videos" / split / label / f"{video}.mp4", level=30 * video + 9 * number)
    data = ImageData("videos", root=str(root / "videos"), size=[4, 24, 24], batch_size=4, workers=0)
    data.setup()
    paths = [save(root / "one", VIDEO, data), save(root / "two", replace(VIDEO, attention="softmax"), data)]
    for path in paths:
        content = torch.load(path, weights_only=True)
        for name, weight in content["state_dict"].items():  # of unlike answers
            if name.startswith("vit.head."):
                content["state_dict"][name] = 40 * weight if "weight" in name else weight
        torch.save(content, path)
    return [path.parents[1] for path in paths]


def cells(folder, name):
    return read_csv(folder / f"{name}.csv")[1]


def test_an_answer_is_the_mean_over_the_views_of_a_video(runs):
    trained = load_trained(runs[0] / "checkpoints" / "last.ckpt")
    trained.data.setup("test")
    size, views = Size(4, 24, 24), Views(3, 2)
    measured = measure_images(trained, size, "test", 0, torch.device("cpu"), views=views)
    vit, right, loss, single = trained.classifier.vit, [], [], []
    for clips, label in trained.data.held_out("test", size, views=views):
        with torch.inference_mode():
            each = torch.cat([vit(trained.data.normalise(clip[None])).softmax(-1) for clip in clips])
        right.append(int(each.mean(0).argmax()) == label)
        loss.append(-float(each.mean(0)[label].log()))
        single.append(each.argmax(-1))
    assert measured.right.tolist() == right
    assert measured.loss.tolist() == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert any(len(answers.unique()) > 1 for answers in single)  # or views would not matter
    plain = measure_images(trained, size, "test", 0, torch.device("cpu"))
    one = measure_images(trained, size, "test", 0, torch.device("cpu"), views=ONE)
    assert all(torch.equal(*pair) for pair in zip(plain, one, strict=True))
    assert not torch.equal(plain.loss, measured.loss)


def test_what_is_kept_is_of_the_distance_of_frames(runs):
    """The same weights, of a run with another one."""
    group = SimpleNamespace(model="one", overrides={}, settings=dict, finished=lambda: {0: runs[0]})
    path = runs[0] / "checkpoints" / "last.ckpt"
    spread = Results({}, torch.device("cpu")).of_images(group, "loss")
    before = torch.load(path, weights_only=True)
    data = before["ImageData"]
    torch.save({**before, "ImageData": {**data, "config": {**data["config"], "frame_stride": 1}}}, path)
    try:
        loss = Results({}, torch.device("cpu")).of_images(group, "loss")
    finally:
        torch.save(before, path)
    assert not np.allclose(loss, spread)


def test_tables_of_papers_take_views(runs):
    group = SimpleNamespace(model="one", overrides={}, settings=dict, finished=lambda: {0: runs[0]})
    trained = load_trained(runs[0] / "checkpoints" / "last.ckpt")
    for views in (ONE, Views(2, 3)):
        loss = Results({}, torch.device("cpu"), views=views).of_images(group, "loss")
        expected = measure_images(trained, Size(4, 24, 24), "test", 0, torch.device("cpu"), views=views).loss
        assert loss[0].tolist() == pytest.approx(expected.tolist())
        assert loss.shape == (1, 3 * COUNT)


def test_intervals_are_over_videos(runs, tmp_path, capsys):
    arguments = ["resolution", *map(str, runs), "--device", "cpu", "--out"]
    main([*arguments, str(tmp_path / "views"), "--views", "3x2"])
    assert "accuracy in % (test, 3x2 views)" in capsys.readouterr().out
    for row in cells(tmp_path / "views", "resolution"):
        right = round(float(row["accuracy"]) * 3 * COUNT / 100)
        assert (row["images"], row["views"]) == (str(3 * COUNT), "3x2")
        ends = [100 * end for end in wilson_interval(right, 3 * COUNT)]
        assert [float(row["low"]), float(row["high"])] == pytest.approx(ends, abs=1e-3)
    main([*arguments, str(tmp_path / "plain")])
    main([*arguments, str(tmp_path / "one"), "--views", "1x1"])
    assert cells(tmp_path / "plain", "resolution") == cells(tmp_path / "one", "resolution")
    assert "views" not in cells(tmp_path / "plain", "resolution")[0]


@pytest.mark.slow
def test_evaluations_of_accuracy_agree(runs, tmp_path):
    """What is kept of each video is of its views; models are compared video by video."""
    common = [*map(str, runs), "--device", "cpu", "--out"]
    losses = {}
    for views in ("1x1", "2x3", "1x1"):
        main(["compare", *common, str(tmp_path / views), "--views", views])
        compared = {row["model"]: row for row in cells(tmp_path / views, "compare")}
        assert {row["images"] for row in compared.values()} == {str(3 * COUNT)}
        again = [float(row["loss"]) for row in compared.values()]
        assert losses.setdefault(views, again) == again  # and those of other views do not stand for it
    assert not np.allclose(losses["1x1"], losses["2x3"])
    out = tmp_path / "2x3"
    accuracy = {row["model"]: float(row["accuracy"]) for row in cells(out, "compare")}
    for name in ("resolution", "confusion"):
        main([name, *common, str(out), "--views", "2x3"])
    assert {row["model"]: float(row["accuracy"]) for row in cells(out, "resolution")} == pytest.approx(accuracy)
    rows = [row for row in cells(out, "confusion") if row["class"] == "all classes"]
    assert {row["model"]: float(row["accuracy"] or 0) for row in rows[:2]} == pytest.approx(accuracy)
    (path,) = (out / "confusion").glob("matrix-one-*.csv")
    matrix = read_matrix(path)
    assert (matrix.views, int(matrix.counts.sum())) == (Views(2, 3), 3 * COUNT)
    assert any(
        text.get_text() == f"test split, {3 * COUNT} images, 2x3 views" for text in draw_matrix(matrix).findobj(Text)
    )
    counts = [int(rows[2][name]) for name in ("both right", "only model", "only other", "neither")]
    assert sum(counts) == 3 * COUNT


@pytest.mark.parametrize("name", ["resolution", "compare", "confusion"])
def test_models_of_images_have_no_views(name, tmp_path, capsys):
    run = save(tmp_path / "arrows").parents[1]
    with pytest.raises(SystemExit) as stop:
        main([name, str(run), "--views", "5x3"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "arrows: 5x3 views are of videos in files, and arrow has images: leave views out." in said
    assert not (run / "results").exists()
    main([name, str(run), "--views", "1x1", "--images", "8"])


def test_the_option_says_what_it_takes(capsys):
    with pytest.raises(SystemExit):
        main(["resolution", "run", "--views", "15"])
    assert "views are segments x crops of a video, like 5x3, not '15'" in capsys.readouterr().err
