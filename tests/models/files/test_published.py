"""Published models come back bit for bit, whatever they are."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors import safe_open
from torch.nn.utils import parametrizations

from performer_string import ENCODINGS, FEATURE_MAPS, ModelDetails, Preprocessing, ViT, fold
from performer_string.layers.values import VALUE_MAPS
from performer_string.models.files.weights import round_weights
from tests.helpers.cases import case
from tests.helpers.small_vit import vit

IMAGES = torch.randn(2, 2, 16, 24, generator=torch.Generator().manual_seed(7))
CASES = {
    **{f"encoding {name}": {"encoding": name} for name in ENCODINGS},
    **{f"shared {name}": {"encoding": name, "share_layers": True} for name in ("circulant-string", "liere")},
    **{f"map {name}": {"feature_map": name, "feature_options": {}} for name in FEATURE_MAPS},
    **{
        f"learned {name}": {"feature_map": name, "feature_options": {"learned": True}}
        for name in ("favor+", "arc-cosine")
    },
    **{f"values {name}": {"values": name} for name in VALUE_MAPS},
    "one block of features": {"feature_options": {"num_features": 4}},
    "softmax, table": {"attention": "softmax", "locality": "table", "pool": "cls", "registers": 1},
    "decay": {"locality": "gaussian", "pool": "attention"},
}


def assert_same(model: ViT, other: ViT, *case: object) -> None:
    """Assert that two models have the same configuration, state, types and outputs, bit for bit."""
    state, loaded = model.state_dict(), other.state_dict()
    assert state.keys() == loaded.keys(), case
    for name, value in state.items():
        assert value.dtype == loaded[name].dtype, (case, name)
        assert torch.equal(value, loaded[name]), (case, name)
    buffers = dict(other.named_buffers())
    for name, value in model.named_buffers():
        assert torch.equal(value, buffers[name]), (case, name)
        assert value.dtype == buffers[name].dtype, (case, name)
    assert model.config == other.config, case
    assert model.preprocessing == other.preprocessing, case
    with torch.no_grad():
        assert torch.equal(model.eval()(IMAGES), other(IMAGES)), case


SOME = ("map favor+", "shared circulant-string", "one block of features", "softmax, table")


@pytest.mark.parametrize(
    "names", [SOME, pytest.param(CASES.keys() - SOME, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_every_kind_of_model_comes_back_bit_for_bit(names, tmp_path):
    for number, name in enumerate(sorted(names)):
        options = CASES[name]
        with case(name):
            model = vit(**options)
            for parameter in model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            assert_same(model, ViT.from_pretrained(model.save_pretrained(tmp_path / str(number))), name)


@pytest.mark.parametrize("name", ["circulant-string", "rope", "pate-so3"])
def test_folded_and_redrawn_models_of_any_type(name, tmp_path):
    model = vit(encoding=name)
    model.redraw(3)
    model.preprocessing = Preprocessing((0.1, 0.2), (0.3, 0.4), tuple("abcde"), (1, 2, 3))
    for number, other in enumerate((fold(model), vit(encoding=name).to(torch.bfloat16), vit(encoding=name).double())):
        loaded = ViT.from_pretrained(other.save_pretrained(tmp_path / str(number)))
        assert_same(other, loaded, number)
    mixed = vit(encoding=name)
    mixed.head.to(torch.float64)
    loaded = ViT.from_pretrained(mixed.save_pretrained(tmp_path / "mixed"))
    assert [p.dtype for p in loaded.parameters()] == [p.dtype for p in mixed.parameters()]


def test_rounded_weights_come_back_bit_for_bit_from_half_the_room(tmp_path):
    model = vit()
    whole = (model.save_pretrained(tmp_path / "whole") / "model.safetensors").stat().st_size
    rounded = round_weights(model)
    folder = rounded.save_pretrained(tmp_path / "rounded")
    assert (folder / "model.safetensors").stat().st_size < 0.75 * whole
    assert_same(rounded, ViT.from_pretrained(folder))
    rounded.head.weight.data[0, 0] = 1 + 2**-20  # one value that is not of bfloat16
    folder = rounded.save_pretrained(tmp_path / "other")
    assert (folder / "model.safetensors").stat().st_size > 0.75 * whole
    assert_same(rounded, ViT.from_pretrained(folder))


def test_weights_that_are_one_tensor_stay_one(tmp_path):
    model = vit()
    model.blocks[2].mlp = model.blocks[1].mlp
    loaded = ViT.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert_same(model, loaded)
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in loaded.named_parameters()] == names
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert not any(name.startswith("blocks.2.mlp") for name in file.keys())  # noqa: SIM118


def test_a_model_beside_its_configuration_is_not_saved(tmp_path):
    changed = vit()
    changed.head = torch.nn.Linear(24, 7)
    adapted = vit()
    parametrizations.weight_norm(adapted.head)
    for model, name in ((changed, "head.weight"), (adapted, "head.parametrizations")):
        with pytest.raises(ValueError, match=f"could not be loaded again: .*{name}"):
            model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_loading_leaves_the_generator(tmp_path):
    """A teacher, or a model to compare with, changed what was drawn after it."""
    folder = vit().save_pretrained(tmp_path / "model")
    state = torch.get_rng_state()
    ViT.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), state)


def test_saving_leaves_the_generator_and_a_card_of_the_user(tmp_path):
    model, state = vit(), torch.get_rng_state()
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "config.json", "model.safetensors"}


def test_the_card_has_data_figures_command_and_licence(tmp_path):
    metric = {"split": "test", "resolution": "16x24", "tokens": 12, "accuracy": 97.5, "low": 95.0, "high": 99.0}
    details = ModelDetails("ant-bee", "ants", "mit", "python -m train fit", ["torch 2"], [metric], ["No wasps."])
    text = (vit().save_pretrained(tmp_path, details) / "README.md").read_text()
    for part in ("license: mit", "name: ant-bee", "97.5 (95.0-99.0)", "python -m train fit", "No wasps", "ants"):
        assert part in text
    (result,) = huggingface_hub.ModelCard(text).data.eval_results  # as the Hub reads it
    assert result.metric_value == 0.975
    assert json.loads((tmp_path / "config.json").read_text())["metrics"] == [metric]
    with pytest.raises(ValueError, match="a model's name has letters"):
        ModelDetails("../up")


def test_the_hub(tmp_path, monkeypatch):
    """Against a stand-in of the Hub: what is uploaded is loaded again, and all options arrive."""
    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(("token", token))

        def create_repo(self, repo_id, **options):
            calls.append((repo_id, options))
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, repo_id, folder_path, commit_message, revision, create_pr, **options):
            calls.append((repo_id, commit_message, revision, create_pr))
            shutil.copytree(folder_path, tmp_path / "hub")
            return f"https://hub/{repo_id}/commit/1"

    monkeypatch.setattr("performer_string.models.files.writing.HfApi", Api)
    model = vit()
    address = model.push_to_hub("me/ants", private=True, token="t", branch="v1", create_pr=True)
    assert address == "https://hub/me/ants/commit/1"
    assert calls == [
        ("token", "t"),
        ("me/ants", {"private": True, "exist_ok": True}),
        ("me/ants", "Upload model", "v1", True),
    ]
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert_same(model, ViT.from_pretrained(tmp_path / "hub"))
    assert "model_name: ants" in (tmp_path / "hub" / "README.md").read_text()
    with pytest.raises(ValueError, match="there is no checkpoint me/none"):
        ViT.from_pretrained("./me/none")  # a path


def test_nothing_is_uploaded_that_could_not_be_loaded(monkeypatch):
    monkeypatch.setattr("performer_string.models.files.writing.HfApi", None)
    model = vit()
    model.head = torch.nn.Linear(model.config.width, 7)
    with pytest.raises(ValueError, match="not what its configuration describes"):
        model.push_to_hub("me/ants")
    with pytest.raises(ValueError, match="is named OWNER/NAME"):
        vit().push_to_hub("ants")


def test_saving_that_fails_leaves_the_old_model(tmp_path, monkeypatch):
    """Files are moved when all are finished."""
    model = vit()
    model.save_pretrained(tmp_path)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("performer_string.models.files.writing.write_config", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vit().save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_missing_packages_are_named(tmp_path, monkeypatch):
    for name in ("huggingface_hub", "safetensors.torch"):
        with monkeypatch.context() as context:
            context.setitem(__import__("sys").modules, name, None)
            with pytest.raises(ImportError, match="pip install"):
                vit().save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_files_may_be_read_by_whom_new_files_may(tmp_path):
    (tmp_path / "other").write_text("")
    model = vit()
    model.save_pretrained(tmp_path / "model")
    modes = {path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}
