"""A model carries its classes, and the transform of its validation images."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from performer_string import Preprocessing, ViT, ViTConfig, fold
from train.data.module import ImageData
from train.module import ImageClassifier


def small_vit(channels=3):
    config = {"width": 8, "depth": 1, "num_heads": 1, "patch_size": 4, "image_size": [8, 12], "num_classes": 3}
    return ViT(ViTConfig(**config, in_channels=channels))


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, side in (("ant", 9), ("bee", 30), ("cat", 14)):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                pixels = rng.integers(0, 256, (side, 17, 4), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_transform_is_that_of_validation(folder):
    data = ImageData(source="folder", root=str(folder), size=[8, 12], background=[9, 8, 7], mean=[0.4, 0.5, 0.6])
    model = small_vit()
    model.preprocessing = data.preprocessing()
    assert model.classes == ("ant", "bee", "cat")
    held_out = data.held_out("test", (8, 12))
    for i, number in enumerate(held_out.indices.tolist()):
        path, label = held_out.dataset.samples[number]
        image, target = held_out[i]
        assert (label, f"/{model.classes[label]}/" in path) == (target, True)
        assert torch.equal(model.transform()(Image.open(path)), data.normalise(image))


def test_transform_of_grey_images_and_tensors():
    model = small_vit(channels=1)
    model.preprocessing = Preprocessing((0.25,), (0.5,))
    grey = torch.arange(96, dtype=torch.uint8).view(1, 8, 12)
    expected = (grey.float() / 255 - 0.25) / 0.5
    assert torch.equal(model.transform()(grey), expected)
    assert torch.equal(model.transform()(Image.fromarray(grey[0].numpy())), expected)
    assert model.transform(16)(grey).shape == (1, 16, 16)
    with pytest.raises(ValueError, match="of 1 channels"):
        model.transform()(grey.expand(3, 8, 12))
    with pytest.raises(ValueError, match="patch"):
        model.transform(10)
    for size in (0, -8, 8.0, "8"):
        with pytest.raises(ValueError, match="a size is height and width in pixels"):
            model.transform(size)


@pytest.mark.parametrize("image", [np.zeros((8, 12, 3), np.uint8), "bird.jpg"], ids=["array", "path"])
def test_what_is_no_image_is_named(image):
    model = small_vit()
    model.preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match=r"a PIL image, .* of 3 channels, not (.*\[8, 12, 3\]|str)"):
        model.transform()(image)


def test_preprocessing_is_carried():
    model = small_vit()
    with pytest.raises(ValueError, match="does not know how its images were normalised"):
        model.transform()
    model.preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3, ("a", "b", "c"))
    for other in (fold(model), copy.deepcopy(model)):
        assert other.classes == ("a", "b", "c")


def test_checkpoints_hold_it(tmp_path):
    classifier = ImageClassifier(small_vit().config)
    data = {"config": {"source": "mnist", "mean": None, "std": None}, "classes": ["zero", "one", "two"]}
    content = {"hyper_parameters": dict(classifier.hparams), "state_dict": classifier.state_dict()}
    paths = {name: tmp_path / name for name in ("new", "old", "bare")}
    saved = Preprocessing((0.1,) * 3, (0.2,) * 3, ("x", "y", "z"), (1, 2, 3))
    classifier.vit.preprocessing = saved
    new = dict(content)
    classifier.on_save_checkpoint(new)
    for name, values in (("new", new), ("old", {**content, "ImageData": data}), ("bare", content)):
        torch.save(values, paths[name])
    assert ViT.from_checkpoint(paths["new"]).preprocessing == saved
    old = ViT.from_checkpoint(paths["old"])
    assert old.preprocessing == Preprocessing((0.1307,), (0.3081,), ("zero", "one", "two"))
    assert ViT.from_checkpoint(paths["bare"]).preprocessing is None


def test_classes_of_arrows():
    assert ImageData(size=[72, 72]).preprocessing() == Preprocessing((0.0,), (1.0,), ("up", "left", "down", "right"))


def test_transform_can_be_pickled():
    """Processes that load images get it so, where they are spawned."""
    model = small_vit()
    model.preprocessing = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.2, 0.2), ("ant", "bee", "cat"))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    transform = model.transform()
    assert torch.equal(pickle.loads(pickle.dumps(transform))(image), transform(image))


def test_a_channel_without_deviation_is_refused():
    with pytest.raises(ValueError, match="std must be positive, not 0"):
        Preprocessing((0.5, 0.5), (0.0, 0.5))


def test_probabilities_follow_the_outputs():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    made = {outputs: Preprocessing((0.5,), (0.5,), outputs=outputs) for outputs in ("class", "labels", "numbers")}
    assert torch.equal(made["class"].probabilities(logits), torch.softmax(logits, -1))
    assert torch.equal(made["labels"].probabilities(logits), torch.sigmoid(logits))
    with pytest.raises(ValueError, match="numbers, and no logits"):
        made["numbers"].probabilities(logits)
    assert "outputs" not in made["class"].plain()  # earlier versions read it
    assert Preprocessing(**made["labels"].plain()) == made["labels"]
    with pytest.raises(ValueError, match=r"unknown outputs of the preprocessing 'label'\. Did you mean 'labels'"):
        Preprocessing((0.5,), (0.5,), outputs="label")


def test_files_of_images_lack_the_channels_of_a_multispectral_model():
    """The error showed a tensor of three channels, which the reader had never given."""
    transform = Preprocessing((0.5,) * 5, (0.5,) * 5).transform((8, 8))
    assert transform(torch.zeros(5, 8, 8, dtype=torch.uint8)).shape == (5, 8, 8)
    with pytest.raises(ValueError, match=r"of 5 channels, .* files give 1 or 3 channels: give an array \[5, H, W\]"):
        transform(Image.new("RGB", (8, 8)))
