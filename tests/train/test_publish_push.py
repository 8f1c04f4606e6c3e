"""Pushing a published model to the Hub, which a stand-in takes the place of."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from safetensors.torch import load

from performer_string import ViT
from tests.helpers.publishing import finished_run, refused_publishing
from train.publish import main


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path / "runs")


def answer(status: int) -> HfHubHTTPError:
    """Return the error of an answer of the Hub."""
    response = SimpleNamespace(headers={}, request=None, status_code=status)
    return HfHubHTTPError(str(status), response=response)


class ConnectError(Exception):
    """Stands for that of the package for requests, which is none of Python's own errors."""


class Api:
    """Stands for the Hub: keeps what is uploaded, or fails with an error."""

    error: Exception | None = None
    uploads: dict[str, dict[str, bytes]]
    private: bool | None = None

    def __init__(self, token=None):
        pass

    def create_repo(self, repo_id, private, exist_ok):
        if Api.error:
            raise Api.error
        Api.private = private
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id, folder_path, **options):
        Api.uploads[repo_id] = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return f"https://hub/{repo_id}/commit/1"


@pytest.fixture
def the_hub(monkeypatch):
    monkeypatch.setattr("performer_string.models.files.writing.HfApi", Api)
    monkeypatch.setattr(Api, "error", None)
    monkeypatch.setattr(Api, "uploads", {}, raising=False)
    return Api


def test_push(run, tmp_path, the_hub, capsys):
    options = ["--push", "me/ants", "--private"]
    main([str(run), str(tmp_path / "ants"), "--skip_test", *options])
    assert "https://hub/me/ants/commit/1" in capsys.readouterr().out
    assert the_hub.private
    written = {path.name: path.read_bytes() for path in (tmp_path / "ants").iterdir()}
    uploaded = the_hub.uploads["me/ants"]
    weights = [
        load(files.pop("model.safetensors")) for files in (written, uploaded)
    ]  # the order in a header may differ
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert uploaded == written
    assert "OWNER/NAME" in refused_publishing([run, tmp_path / "two", "--push", "me/my/ants"], capsys)
    assert not (tmp_path / "two").exists()  # nothing was measured for it


@pytest.mark.parametrize(
    ("error", "todo"),
    [
        (ConnectError("[Errno 111] Connection refused"), "was the Hub reached?"),
        (answer(403), "log in by `hf auth login`"),
        (answer(500), "see https://status.huggingface.co, or try again later"),
        (OfflineModeIsEnabled("offline"), "unset HF_HUB_OFFLINE"),
    ],
    ids=["no network", "no right to write", "the Hub is down", "offline"],
)
def test_a_push_that_fails_leaves_the_folder(run, tmp_path, the_hub, error, todo, capsys):
    the_hub.error, folder = error, tmp_path / "ants"
    said = refused_publishing([run, folder, "--skip_test", "--push", "me/ants"], capsys)
    assert f"the model was not uploaded to me/ants: {todo}" in said
    assert f"Upload it later by: hf upload me/ants {folder}\n" in said
    assert ViT.from_pretrained(folder).classes


def test_publishing_without_the_package(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    options = [run, tmp_path / "ants", "--skip_test"]
    assert "this needs huggingface_hub: pip install" in refused_publishing([*options, "--push", "me/ants"], capsys)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "pip install" in refused_publishing(options, capsys)
    assert not (tmp_path / "ants").exists()
