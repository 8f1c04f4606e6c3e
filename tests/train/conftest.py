"""Fixtures: folders of images, and a job of SLURM."""

from __future__ import annotations

import os
import signal

import pytest
from PIL import Image

from train.data.module import ImageData


@pytest.fixture
def images(tmp_path):
    """A function that makes images at {root}/{split}/{name}: {split: {name: how many}}."""

    def make(root="here", **splits: dict[str, int]) -> ImageData:
        for split, classes in splits.items():
            for name, count in classes.items():
                folder = tmp_path / root / split / name
                folder.mkdir(parents=True)
                for i in range(count):
                    Image.new("RGB", (8, 8), (i, i, i)).save(folder / f"{i}.png")
        return ImageData("folder", root=str(tmp_path / root), size=[8, 8], batch_size=2)

    return make


@pytest.fixture
def queued(tmp_path, monkeypatch):
    """Be a job of SLURM in a folder, and return the jobs that scontrol was asked to queue again."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/queued\n')
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    names = {"NTASKS": 1, "JOB_NAME": "train", "JOB_ID": 7, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "NNODES": 1}
    for name, value in {**names, "NTASKS_PER_NODE": 1, "JOB_NODELIST": "localhost"}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGUSR1)
    yield lambda: (tmp_path / "queued").read_text().split() if (tmp_path / "queued").exists() else []
    signal.signal(signal.SIGUSR1, handler)
