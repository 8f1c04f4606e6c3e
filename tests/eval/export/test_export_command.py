"""Exports take any batch and size with PyTorch's outputs, or the part that is in the way is named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from PIL import ExifTags, Image
from torch.export import ExportedProgram

from eval.cli import main
from eval.export import command, formats
from eval.export.program import ExportError, export_error, trace
from performer_string import ENCODINGS, FEATURE_MAPS, LOCALITIES, Preprocessing, ViT, ViTConfig, fold
from performer_string.layers.values import VALUE_MAPS
from tests.helpers.checkpoints import CONFIG, save
from tests.helpers.pages import REPOSITORY, blocks
from tests.helpers.small_vit import vit
from tests.helpers.thorough import sampled
from train.data.sizes import Size

SIZES = [Size(16, 24), Size(32, 24)]
ALWAYS = {"pate-so4"}  # of the encodings; others are in the tests below
NO_ONNX = {"liere": "linalg_matrix_exp", "cayley-string": "linalg_inv"}


def model(**options):
    """Return a model of one layer with weights that reach the logits."""
    options.setdefault("feature_options", {})
    built = vit(**{"depth": 1, **options}).eval()
    torch.manual_seed(0)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return built


def assert_exported(built, sizes, path, names=("onnx", "torch")) -> ExportedProgram:
    """Compare each format, read again, with the model, and return the graph that they were made of."""
    program = trace(built, sizes)
    for name in names:
        write, read, suffix = command.FORMATS[name]
        file = path / f"model{suffix}"
        write(built, program, file, command.details_of(built))
        rows = command.compare(built, read(file), sizes)
        assert all(row["largest logit"] > 0.01 for row in rows)
    return program


def fails(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["export", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([name for name in ENCODINGS if name not in NO_ONNX], ALWAYS))
def test_every_encoding_map_and_value_map_of_any_size(name, tmp_path):
    """Each with another feature map and value map, in turn, so that every part is in one of the models."""
    number = list(ENCODINGS).index(name)
    feature_map = list(FEATURE_MAPS)[number % len(FEATURE_MAPS)]
    values = [None, *VALUE_MAPS][number % (1 + len(VALUE_MAPS))]
    options = {"encoding": name, "values": values, "pool": ("mean", "cls", "attention")[number % 3]}
    linear = {"attention": "linear", "feature_map": feature_map, "key_gate": bool(number % 2)}
    softmax = {"attention": "softmax", "log_n_scaling": True, "qk_norm": True}
    assert_exported(model(**options, **(softmax if number > 9 else linear)), SIZES, tmp_path)


@pytest.mark.slow
def test_narrow_queries_and_two_kinds_of_attention(tmp_path):
    """With positions that are interpolated, a class token, and gates of keys and values."""
    options = {"feature_map": "polynomial", "attention": ["linear", "softmax"], "depth": 2, "qk_dim": 4}
    options |= {"encoding": "absolute", "values": "gating", "pool": "cls", "key_gate": True}
    assert_exported(model(**options), SIZES, tmp_path, ["onnx"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(NO_ONNX, {"liere"}))  # the command line has the other
def test_encodings_that_onnx_lacks_an_operation_for(name, tmp_path):
    built = model(encoding=name, attention="softmax")
    program = assert_exported(built, SIZES, tmp_path, ["torch"])
    with pytest.raises(ExportError, match=f"encoding '{name}', .* cannot be exported to ONNX: .* {NO_ONNX[name]}"):
        formats.write_onnx(built, program, tmp_path / "model.onnx", {})
    if name == "cayley-string":
        assert_exported(fold(built), SIZES, tmp_path, ["onnx"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(LOCALITIES, {"gaussian"}))
def test_distance_decays_of_any_size(name, tmp_path):
    """By turns with linear attention, which needs other graphs, and with softmax."""
    options = {"attention": ("linear", "softmax")[list(LOCALITIES).index(name) % 2], "pool": "cls"}
    options |= {"locality_options": {"sigma": [2.0, 3.0]}} if name == "gaussian" else {}
    assert_exported(model(locality=name, **options), SIZES, tmp_path)


@pytest.mark.slow
def test_a_part_with_a_graph_for_each_size():
    built = model(values="lepe", positions="interpolate", locality="gaussian")
    with pytest.raises(ExportError, match=r"value map 'lepe', .* has a graph for one size of images alone"):
        trace(built, SIZES)
    trace(built, SIZES[:1])


@pytest.mark.slow
def test_the_guide_uses_a_file_without_torch(tmp_path, monkeypatch, capsys):
    """The block of docs/guides/share.md gives the answer of the model, also of one that must be folded before."""
    torch.manual_seed(0)
    sizes = {"image_size": 96, "patch_size": 24, "num_classes": 4, "width": 24, "depth": 1, "num_heads": 2}
    model = ViT(ViTConfig(**sizes, encoding="cayley-string"))
    torch.nn.init.normal_(model.head.weight)
    model.preprocessing = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), ("ant", "bee", "cat", "dog"))
    model.save_pretrained(tmp_path / "mine")
    file = tmp_path / "runs" / "mine" / "results" / "mine.onnx"
    file.parent.mkdir(parents=True)
    main(["export", str(tmp_path / "mine"), "--format", "onnx", "--fold", "--out", str(file)])
    assert capsys.readouterr().out.count("192 |") == 2  # by default also of twice the size, for one image and three
    metadata = {each.key: json.loads(each.value) for each in onnx.load(file).metadata_props}
    assert (metadata["patch"], metadata["mean"]) == ([24, 24], [0.4, 0.5, 0.6])
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 4), np.uint8)
    picture = Image.fromarray(pixels).resize((120, 100))  # smooth, and transparent in places
    (block,) = [each for each in blocks(REPOSITORY / "docs/guides/share.md", "python") if "onnxruntime" in each.text]
    monkeypatch.chdir(tmp_path)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    lying = {"format": "JPEG", "exif": turned}
    for image, kind in ((picture.convert("RGB"), {}), (picture.convert("RGB"), lying), (picture, {"format": "PNG"})):
        image.save("photograph.jpg", **kind)
        seen = model.transform()(Image.open("photograph.jpg"))
        capsys.readouterr()
        names: dict[str, object] = {}
        exec(block.text, names)
        with torch.no_grad():
            expected = model.eval()(seen[None])[0]
        difference = np.abs(names["pixels"] - seen.permute(1, 2, 0).numpy()).mean()
        assert difference < 0.05, kind  # other rounding in the resizing
        np.testing.assert_allclose(names["logits"][0], expected, atol=0.2)
        assert capsys.readouterr().out.strip() == model.classes[expected.argmax()]


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    run = save(tmp_path / "ants", replace(CONFIG, encoding="cayley-string")).parents[1]
    said = fails([run, "--format", "onnx"], capsys)
    assert "encoding 'cayley-string', " in said
    assert "cannot be exported to ONNX: ONNX has no operation linalg_inv_ex. With --fold" in said
    assert not (run / "results").exists() or not list((run / "results").iterdir())
    main(["export", str(run), "--format", "torch", "--resolutions", "60"])
    assert "for any batch of images of 60 pixels" in capsys.readouterr().out
    assert (run / "results" / "ants.pt2").is_file()


def test_what_is_no_export_is_refused_before_the_tracing(tmp_path, monkeypatch, capsys):
    run = save(tmp_path / "ants").parents[1]
    said = fails([run, "--format", "torch", "--resolutions", "61"], capsys)
    assert "an image of 61 x 61 pixels is not divisible" in said
    assert "ends in .pt2" in fails([run, "--format", "torch", "--out", tmp_path / "a.onnx"], capsys)
    assert "is a folder: give a file" in fails([run, "--format", "torch", "--out", tmp_path], capsys)
    assert "there is no checkpoint" in fails([tmp_path / "no", "--format", "torch"], capsys)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install" in fails([run, "--format", "onnx"], capsys)


def test_nothing_is_beside_the_run_until_the_file_is_compared(tmp_path, monkeypatch):
    """So that a command that is killed leaves no part of a file there."""
    run = save(tmp_path / "ants").parents[1]
    seen = []

    def compare(*arguments):
        seen.extend((run / "results").glob("*"))
        return [{"largest difference": 0.0, "largest logit": 1.0}]

    format = (lambda model, program, path, details: path.write_bytes(b"graph"), lambda path: path.read_bytes(), ".pt2")
    monkeypatch.setitem(command.FORMATS, "torch", format)
    monkeypatch.setattr(command, "trace", lambda *arguments: None)
    monkeypatch.setattr(command, "compare", compare)
    main(["export", str(run), "--format", "torch"])
    assert not seen
    assert [path.name for path in (run / "results").iterdir()] == ["ants.pt2"]
    assert (run / "results" / "ants.pt2").read_bytes() == b"graph"


def test_a_difference_is_seen():
    built = model()
    assert len(command.compare(built, built, SIZES)) == 4
    with pytest.raises(ExportError, match="differs from PyTorch by"):
        command.compare(built, lambda images: built(images) * 1.01, SIZES)
    with pytest.raises(ExportError, match="differs from PyTorch by nan"):
        command.compare(built, lambda images: built(images) * torch.nan, SIZES)


def test_parts_and_the_operation_at_fault_are_named():
    built = model(locality="gaussian", values="gating")
    error = RuntimeError("no")
    error.__cause__ = ValueError("No ONNX function found for <OpOverload(op='aten.fancy_ex', overload='default')>")
    said = str(export_error(built, error, "ONNX"))
    assert said.startswith("a model with encoding 'circulant-string', value map 'gating', distance decay 'gaussian', ")
    assert "linear attention with feature map 'favor+' cannot be exported to ONNX: ONNX has no operation fancy" in said
    assert "--fold" in said
    assert "RuntimeError: why." in str(export_error(built, RuntimeError("why\nnot"), "a graph"))
