"""Describe the code, machine and versions behind a run or a result."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import performer_string

if TYPE_CHECKING:  # figures are drawn without torch
    import torch

ROOT = Path(__file__).resolve().parents[2]


def processor() -> str:
    """Return the CPU model that the operating system reports."""
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else platform.processor() or 'CPU'} ({capability})"


def machine(device: torch.device) -> str:
    """Return the name of a GPU, or of the CPU with its number of threads."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return f"{processor()}, its GPU ({device.type})"
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'' if threads == 1 else 's'}"


def versions() -> str:
    """Return the versions of torch and Python, and the machine's architecture, as text."""
    import torch

    return f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"


def code(root: Path = ROOT) -> str:
    """Return `performer_string 0.1.0, commit 0123abc`, with `and changes` where tracked files differ."""
    version = f"performer_string {performer_string.__version__}"
    if not (root / ".git").exists():  # otherwise git would use a parent repository
        return version
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty= and changes"]
        done = subprocess.run(git, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return version
    return f"{version}, commit {done.stdout.strip()}"
