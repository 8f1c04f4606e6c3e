"""Models by their name on the Hub, against a server of this machine that answers as the Hub does."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from performer_string import ViT
from tests.helpers.small_vit import vit

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub(BaseHTTPRequestHandler):
    """Answers to /OWNER/NAME/resolve/REVISION/FILE; `repositories` has the folder of each."""

    repositories: ClassVar[dict[str, Path]] = {}
    asked: ClassVar[list[str]] = []

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self):
        owner, name, _, revision, file = self.path.lstrip("/").split("/", 4)
        type(self).asked.append(f"{self.command} {file}")
        folder = self.repositories.get(f"{owner}/{name}")
        commit = COMMITS.get(revision, revision if revision in COMMITS.values() else None)
        if name == "gated":
            return self.answer(403, {"X-Error-Code": "GatedRepo"})
        if folder is None:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        if commit is None:
            return self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        if not (folder / file).is_file():
            return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        return self.answer(200, {"X-Repo-Commit": commit, "ETag": f'"{name}-{file}"'}, (folder / file).read_bytes())

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *arguments):
        pass


def at(monkeypatch, port):
    """Let huggingface_hub ask a port of this machine."""
    address = f"http://127.0.0.1:{port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server of models, and the options of a download into a cache and a working folder of the test alone."""
    model = vit()
    model.save_pretrained(tmp_path / "server" / "ants")
    (tmp_path / "server" / "other").mkdir()
    (tmp_path / "server" / "other" / "config.json").write_text('{"architecture": "resnet50"}')
    (tmp_path / "server" / "other" / "model.safetensors").write_bytes(b"0" * 1000)
    (tmp_path / "server" / "empty").mkdir()
    folders = {f"me/{path.name}": path for path in (tmp_path / "server").iterdir()}
    monkeypatch.setattr(Hub, "repositories", folders)
    monkeypatch.setattr(Hub, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()  # which keeps what it has read of the surroundings
    at(monkeypatch, server.server_port)
    yield {"cache_dir": tmp_path / "cache"}
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()


def weights(model) -> torch.Tensor:
    return model.head.weight.detach().clone()


def test_a_model_by_its_name_and_again_without_the_hub(hub, monkeypatch):
    first = ViT.from_pretrained("me/ants", **hub)
    assert torch.equal(weights(first), weights(ViT.from_pretrained(Hub.repositories["me/ants"])))
    assert torch.equal(weights(first), weights(ViT.from_pretrained("me/ants", revision="v1", **hub)))
    Hub.asked.clear()
    again = ViT.from_pretrained("me/ants", local_files_only=True, **hub)
    assert torch.equal(weights(first), weights(again))
    assert Hub.asked == []
    at(monkeypatch, 9)  # where nothing listens
    again = ViT.from_pretrained("me/ants", **hub)
    assert torch.equal(weights(first), weights(again))


def test_a_folder_comes_before_the_hub(hub, tmp_path):
    other = vit()
    with torch.no_grad():
        other.head.weight.add_(1)
    other.save_pretrained(tmp_path / "here" / "me" / "ants")
    assert torch.equal(weights(ViT.from_pretrained("me/ants", **hub)), weights(other))
    assert Hub.asked == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("me/atns", {}, "there is no folder me/atns, and no model me/atns on the Hub: check its spelling"),
        ("me/gated", {}, "asks you to accept its terms: do so at https://huggingface.co/me/gated"),
        ("me/ants", {"revision": "v7"}, "the model me/ants of the Hub has no revision 'v7'"),
        ("me/empty", {}, "me/empty on the Hub is no model of performer_string: it lacks config.json"),
        ("me/other", {}, "the model me/other of the Hub cannot be used: .* is not of performer_string"),
        ("me/ants", {"local_files_only": True}, "is not in the cache, and the Hub was not reached: go online"),
    ],
)
def test_errors_say_what_to_do(name, options, message, hub):
    with pytest.raises(ValueError, match=message):
        ViT.from_pretrained(name, **{**hub, **options})
    assert not any("safetensors" in request for request in Hub.asked)


def test_offline_mode(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"is not in the cache, and the Hub was not reached: .*unset HF_HUB_OFFLINE"):
        ViT.from_pretrained("me/ants", **hub)
    assert Hub.asked == []


def test_a_misspelt_folder_is_recognised(hub, tmp_path):
    (tmp_path / "here" / "models" / "arrow-linear").mkdir(parents=True)
    with pytest.raises(ValueError, match="Did you mean models/arrow-linear"):
        ViT.from_pretrained("models/arow-linear", **hub)


def test_a_name_without_an_owner_is_not_looked_for(hub):
    with pytest.raises(ValueError, match="no folder arow, and a model on the Hub is named OWNER/NAME"):
        ViT.from_pretrained("arow", **hub)
    assert Hub.asked == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_classes": 5},
            r"model\.head = torch\.nn\.Linear\(model\.config\.width, N\) and model\.config\.num_classes",
        ),
        ({"dtype": torch.bfloat16}, r"without 'dtype': change it afterwards by model\.to\(dtype\)"),
        ({"img_size": 96}, r"without 'img_size': call it with images of any size"),
        ({"revison": "v1"}, r"no option 'revison'\. Did you mean 'revision'"),
        ({"foo": 5}, "no option 'foo'. Its options are those of a download: revision, token, "),
    ],
)
def test_options_without_a_use_are_refused_for_a_folder_too(options, message, tmp_path):
    folder = vit().save_pretrained(tmp_path / "ants")
    for name in (folder, "me/ants"):
        with pytest.raises(TypeError, match=message):
            ViT.from_pretrained(name, **options)
    assert ViT.from_pretrained(folder, revision="v1", local_files_only=True)


def test_a_model_is_not_saved_onto_a_file(tmp_path):
    (tmp_path / "ants").write_text("")
    with pytest.raises(ValueError, match=r"save_pretrained writes a folder, and .*ants is a file"):
        vit().save_pretrained(tmp_path / "ants")
