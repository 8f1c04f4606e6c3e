"""Files of published models that are damaged or hostile are refused."""

from __future__ import annotations

import json
import pickle
import struct

import numpy as np
import pytest
import torch

from eval.cli import main as evaluate
from performer_string import Preprocessing, ViT, ViTConfig
from tests.helpers.small_vit import vit


@pytest.fixture
def saved(tmp_path):
    vit().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(folder, match: str) -> None:
    for load in (ViT.from_pretrained, ViT.from_checkpoint):
        with pytest.raises(ValueError, match=match):
            load(folder)


class Mark:
    """A pickle that leaves a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_is_never_loaded(saved, tmp_path):
    (saved / "model.safetensors").write_bytes(pickle.dumps(Mark(tmp_path / "ran")))
    refused(saved, "no safetensors file that can be read")
    torch.save(vit().state_dict(), saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    refused(saved, r"there is no .*model.safetensors. Weights in another format, such as a pickle, are not read")
    assert not (tmp_path / "ran").exists()


def header(content: object, length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def test_damaged_and_hostile_headers(saved):
    whole = (saved / "model.safetensors").read_bytes()
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for data in (
        b"",
        whole[:5],
        whole[: len(whole) // 2],
        header({}, 2**63),
        header({}, 2**40),
        header(b"[" * 10_000),
        header(b"\xff\xfe{"),
        header({"embed.weight": {**tensor, "data_offsets": [0, 2**60]}}),
        header({"embed.weight": {**tensor, "shape": [2**40, 2**40]}}) + bytes(8),
        header({"embed.weight": {**tensor, "dtype": "OBJECT"}}) + bytes(8),
        header({"embed.weight": tensor, "norm.weight": {**tensor, "data_offsets": [4, 12]}}) + bytes(12),
        header({"embed.weight": tensor}) + bytes(8),
        header({"__metadata__": {"shared": '{"head.bias": "no"}'}, "embed.weight": tensor}) + bytes(8),
    ):
        (saved / "model.safetensors").write_bytes(data)
        refused(saved, "model.safetensors (is no safetensors file|does not fit|names shared weights)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2, "tokeniser": 1}, "written by performer_string .* in format 2, and this version reads"),
        ({"metric": []}, "has a field 'metric', which this version does not know. Did you mean 'metrics'"),
        ({"format": "timm"}, "is not of performer_string"),
        ({"vit": {"encodings": "rope"}}, "has a field 'encodings' of ViTConfig"),
        ({"vit": []}, "lacks vit"),
        ({"vit": {"width": 10**9, "depth": 3, "num_heads": 1}}, "does not fit the configuration beside it"),
        ({"vit": {"width": 24, "depth": 10**6, "num_heads": 2}}, "does not fit the configuration beside it"),
    ],
)
def test_configurations_that_cannot_be_used(change, message, saved):
    content = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**content, **change}))
    refused(saved, message)


def test_configurations_that_are_no_json(saved):
    for text in ("", "{", "[" * 100_000, "\ud800".encode("utf-16", "surrogatepass").decode("latin1"), "[]"):
        (saved / "config.json").write_text(text)
        refused(saved, "config.json (cannot be read as JSON|is not of performer_string)")
    (saved / "config.json").unlink()
    refused(saved, "there is no .*config.json")


def test_a_config_of_other_shapes(saved):
    content = json.loads((saved / "config.json").read_text())
    content["vit"]["num_classes"] = 6
    (saved / "config.json").write_text(json.dumps(content))
    refused(saved, "do not fit the configuration beside them")


class Quantised(torch.nn.Linear):
    """A layer with an entry of its state that is no tensor, as those of quantised models have."""

    def get_extra_state(self):
        return torch.qint8


def test_models_that_would_come_back_as_others_are_not_saved(tmp_path):
    replaced, quantised, named = vit(), vit(), vit()
    replaced.blocks[0].mlp[1] = torch.nn.ReLU()
    quantised.head = Quantised(24, 5)
    named.preprocessing = Preprocessing((0.5, 0.5), (0.5, 0.5), classes=("one",))
    for model, message in (
        (replaced, r"blocks\.0\.mlp\.1"),
        (quantised, r"head, head\._extra_state"),
        (named, "names 1 classes, and the model has 5"),
    ):
        with pytest.raises(ValueError, match=message):
            model.save_pretrained(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_numbers_of_numpy_are_saved(tmp_path):
    model = ViT(ViTConfig(variant="micro", image_size=16, patch_size=8, num_classes=np.int64(3)))
    assert ViT.from_pretrained(model.save_pretrained(tmp_path / "numpy")).config.num_classes == 3


def test_a_part_of_a_module_that_is_not_imported(saved, capsys):
    path = saved / "config.json"
    content = json.loads(path.read_text())
    content["vit"]["encoding"] = "golden"
    path.write_text(json.dumps(content))
    refused(saved, r"unknown encoding 'golden'.* A name of your module needs it to be imported first\.$")
    with pytest.raises(SystemExit):
        evaluate(["resolution", "--checkpoint", str(saved)])
    assert capsys.readouterr().err.count("imported first: --imports MODULE.") == 1
