"""Features of image files: against the model by hand, in both formats, with classes of folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from eval.cli import main
from performer_string import Preprocessing, ViT, ViTConfig
from tests.helpers.checkpoints import save

ORDER = ("one", "in/four", "in/three", "in/two")


def by_hand(model, path, size=None):
    image = model.transform(size)(Image.open(path))[None]
    with torch.no_grad():
        return model.forward_features(image).mean(1)[0]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_arrays_of_a_folder(tmp_path, images, capsys, ending):
    run, out = save(tmp_path / "run").parents[1], tmp_path / "new" / f"all.{ending}"
    main(["features", str(run), str(images), "--size", "60x72", "--batch_size", "3", "--out", str(out)])
    assert "features [4, 16] of 1 class, 1 image without one" in capsys.readouterr().out
    if ending == "npz":
        with np.load(out) as file:  # it refuses pickles
            arrays = {name: file[name] for name in file}
        about = json.loads(str(arrays["about"]))
    else:
        with safe_open(out, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts = {name: json.loads(text) for name, text in file.metadata().items()}
        arrays |= {name: np.asarray(texts[name]) for name in ("classes", "paths")}
        about = texts["about"]
    assert arrays["paths"].tolist() == [f"{images}/{name}.png" for name in ORDER]
    assert (arrays["labels"].tolist(), arrays["classes"].tolist()) == ([-1, 0, 0, 0], ["in"])
    assert arrays["labels"].dtype == np.int64
    model = ViT.from_checkpoint(run)
    expected = torch.stack([by_hand(model, path, (60, 72)) for path in arrays["paths"]])
    torch.testing.assert_close(torch.from_numpy(arrays["features"]), expected, atol=1e-5, rtol=1e-4)
    assert expected.std(0).max() > 1e-3  # images differ
    assert (about["model"], about["resolution"]) == ("run", "60x72")


def test_own_sizes_and_files_that_cannot_be_read(tmp_path, images, capsys):
    """Images of several sizes share a batch."""
    run, out = save(tmp_path / "run").parents[1], tmp_path / "all.npz"
    (images / "in" / "broken.png").write_bytes(b"no image")
    with pytest.raises(SystemExit) as stop:
        main(["features", str(run), str(images / "in"), "--native", "--out", str(out)])
    assert stop.value.code == 1
    assert "1 of 4 files could not be read" in capsys.readouterr().out
    with np.load(out) as file:
        features, paths, labels = file["features"], file["paths"], file["labels"]
    assert [path.rpartition("/")[2] for path in paths] == ["four.png", "three.png", "two.png"]
    assert set(labels) == {-1}  # directly in the folder that was given
    model = ViT.from_checkpoint(run)
    for path, size, row in zip(paths, [(12, 192), (120, 60), (72, 96)], features, strict=True):
        if size[0] > 12:  # a smaller one is enlarged
            image = model.preprocessing.transform(None)(Image.open(path))
            top, left = ((a - b) / 2 for a, b in zip(image.shape[1:], size, strict=True))
            image = image[None, :, round(top) :, round(left) :][..., : size[0], : size[1]]
            with torch.no_grad():
                expected = model.forward_features(image).mean(1)[0]
            torch.testing.assert_close(torch.from_numpy(row), expected, atol=1e-5, rtol=1e-4)


def test_a_backbone_of_own_code_needs_no_classes(tmp_path, images):
    model = ViT(ViTConfig(variant="micro", image_size=24, patch_size=12, num_classes=0, pool="cls")).eval()
    model.preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)
    model.save_pretrained(tmp_path / "own")
    main(["features", str(tmp_path / "own"), str(images / "one.png"), "--out", str(tmp_path / "own.npz")])
    with np.load(tmp_path / "own.npz") as file:
        features = torch.from_numpy(file["features"])
    image = model.transform()(Image.open(images / "one.png"))[None]
    with torch.no_grad():
        torch.testing.assert_close(features, model(image), atol=1e-5, rtol=1e-4)


def test_sets_are_no_classes_and_nothing_is_lost(tmp_path, images, capsys):
    run = save(tmp_path / "run").parents[1]
    for name in ("train", "val"):
        (tmp_path / "sets" / name / "a").mkdir(parents=True)
    cases = [
        (
            [str(tmp_path / "sets"), "--out", str(tmp_path / "x.npz")],
            f"give one of them, such as {tmp_path}/sets/train",
        ),
        ([str(images), "--out", str(tmp_path / "x.npy")], "--out is a file NAME.npz or NAME.safetensors"),
    ]
    (run / "results").mkdir()
    (run / "results" / "features.npz").write_bytes(b"precious")
    cases.append(([str(images)], "features.npz exists: give another name by --out"))
    for arguments, message in cases:
        with pytest.raises(SystemExit, match="2"):
            main(["features", str(run), *arguments])
        assert message in capsys.readouterr().err
    assert (run / "results" / "features.npz").read_bytes() == b"precious"
