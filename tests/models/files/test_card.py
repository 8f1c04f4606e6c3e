"""The code on a model card runs, and the card's metadata say how many images a figure is of."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from performer_string import ModelDetails, Preprocessing
from performer_string.models.files import card as model_card
from tests.helpers.small_vit import vit

METRIC = {"split": "test", "resolution": "16", "tokens": 4, "accuracy": 75.0, "low": 60.0, "high": 90.0, "images": 20}


@pytest.mark.parametrize(
    ("options", "classes"), [({}, ("ant", "bee", "cat")), ({}, ()), ({"head": "dense"}, ("ant", "bee", "cat"))]
)
def test_the_code_of_a_card_runs(options, classes, tmp_path, capsys):
    preprocessing = Preprocessing((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), classes, (0, 0, 0))
    model = vit(in_channels=3, num_classes=3, **options)
    model.preprocessing = preprocessing
    text = (model.save_pretrained(tmp_path / "model", ModelDetails(name="ants")) / "README.md").read_text()
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "image.png")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    values = {"PATH": str(tmp_path / "image.png"), "SIZE": (16, 16)}
    exec(code.replace('"DIR"', repr(str(tmp_path / "model"))), values)
    if options:
        assert values["classes"].shape == (1, 16, 16)
        assert "python -m eval segment DIR PATH" in text
    else:
        assert values["probabilities"].shape == (3,)
        assert any(name in capsys.readouterr().out for name in classes) == bool(classes)


def test_the_hub_gets_the_number_of_images(tmp_path):
    details = ModelDetails(name="ants", metrics=[METRIC])
    text = (vit().save_pretrained(tmp_path, details) / "README.md").read_text()
    (result,) = yaml.safe_load(text.split("---")[1])["model-index"][0]["results"]
    (metric,) = result["metrics"]
    assert (metric["value"], metric["args"]) == (0.75, {"images": 20})


def test_a_card_names_modules_to_import_first(tmp_path):
    text = (vit().save_pretrained(tmp_path, ModelDetails(name="ants", imports=["mine"])) / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.index("import mine") < code.index("from_pretrained")


def test_the_code_on_the_card_of_a_video_model_runs():
    """It took a transform of images, which such a model does not have."""
    model = vit(image_size=[2, 8, 8], patch_size=[1, 4, 4], in_channels=3, num_classes=2)
    model.preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3, ("a", "b"))
    training = {"data": {"config": {"source": "videos", "frame_stride": 4}}}
    text = model_card.card(model, ModelDetails(name="clips", training=training))
    assert "pipeline_tag: video-classification" in text
    assert "consecutive frames 4 apart" in text
    assert "transform()" not in text
    code = text.split("```python\n")[1].split("```")[0]
    lines = [line for line in code.splitlines() if "from_pretrained" not in line]
    frames = torch.randint(256, (1, 3, 2, 8, 8), dtype=torch.uint8)
    values = {"model": model, "frames": frames}
    exec("\n".join(line for line in lines if not line.startswith("frames =")), values)
    assert values["probabilities"].shape == (2,)


@pytest.mark.parametrize(("outputs", "shown"), [("labels", "probabilities"), ("numbers", "numbers")])
def test_the_card_of_a_model_with_other_outputs_than_one_class(outputs, shown, tmp_path):
    """The code took the softmax of labels and numbers, and metrics other than accuracies were a KeyError."""
    model = vit(in_channels=3, num_classes=2)
    model.preprocessing = Preprocessing((0.5,) * 3, (0.2,) * 3, ("hail", "rain"), outputs=outputs)
    metric = {"split": "test", "resolution": "16", "tokens": 4, "mAP": 0.615, "low": 0.5, "high": 0.7}
    text = (model.save_pretrained(tmp_path / "model", ModelDetails(metrics=[metric])) / "README.md").read_text()
    assert "| test | 16 | 4 | mAP 0.615 (0.5-0.7) |" in text
    assert f"| {outputs} | 2: hail, rain |" in text
    assert "accuracy" not in text.lower()
    front = yaml.safe_load(text.split("---")[1])
    assert front.get("pipeline_tag") == {"labels": "image-classification", "numbers": None}[outputs]
    (result,) = front["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "mAP", "value": 0.615}]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "image.png")
    values = {"PATH": str(tmp_path / "image.png")}
    exec(code.replace('"DIR"', repr(str(tmp_path / "model"))), values)
    outputs_of_image = values["model"](values["image"][None])[0]
    expected = outputs_of_image.sigmoid() if outputs == "labels" else outputs_of_image
    assert torch.equal(values[shown], expected)


def test_a_metric_without_a_value_is_refused_before_anything_is_written():
    with pytest.raises(ValueError, match=r"one value under its name.*not \{'split': 'test'\}"):
        ModelDetails(metrics=[{"split": "test"}])
    with pytest.raises(ValueError, match="one value under its name"):
        ModelDetails(metrics=[{"split": "test", "resolution": "96", "MAE": 1.0, "RMSE": 2.0}])


def test_a_mean_iou_may_stand_alone(tmp_path):
    metric = {"split": "test", "resolution": "16", "tokens": 4, "mIoU": 0.615}
    text = (vit().save_pretrained(tmp_path, ModelDetails(name="masks", metrics=[metric])) / "README.md").read_text()
    assert "| test | 16 | 4 | mIoU 0.615 |" in text
