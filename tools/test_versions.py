"""Run the fast tests with several versions of torch and Python, each in an environment of its own.

    python tools/test_versions.py [--torch 2.11.0 2.14.1] [--python 3.10 3.12] [--folder .versions] [TEST ...]

An interpreter is taken from the search path, and otherwise fetched by uv where that is installed. Combinations without
one are skipped, and listed at the end. An environment takes some 6 GB of disk on Linux, and is kept for the next time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCHVISION = {"2.11.0": "0.26.0", "2.14.1": "0.29.1"}  # matching version for each torch
# Packages chosen here, installed by torch, or pinned by it: other versions of torch need other versions of them.
OF_TORCH = ("torch", "torchvision", "triton", "setuptools", "sympy", "networkx")
NUMPY_OF_TRITON = {"2.11.0": "numpy<2.4"}  # Triton 3.6's interpreter fails with later versions


def requirements(torch: str) -> str:
    """Return the requirements of the lock file with another torch, without packages that belong to the locked one."""
    lines = [f"torch=={torch}", f"torchvision=={TORCHVISION[torch]}", "setuptools>=77"]
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        name = re.split(r"[=\s;]", line)[0]
        if name in OF_TORCH or name.startswith(("#", "nvidia-", "cuda-")):
            continue
        lines.append(line)
    if torch in NUMPY_OF_TRITON:
        lines = [line for line in lines if not line.startswith(("numpy==", "scipy=="))]
        lines += [NUMPY_OF_TRITON[torch], "scipy>=1.13"]
    return "\n".join(lines) + "\n"


def make_environment(python: str, folder: Path) -> str | None:
    """Make a virtual environment with pip.

    Args:
        python: version of the interpreter, such as 3.12.
        folder: folder of the environment.

    Returns:
        Reason why it could not be made; None on success.
    """
    here = "{}.{}".format(*sys.version_info[:2])
    interpreter = sys.executable if python == here else shutil.which(f"python{python}")
    if interpreter is not None:
        command = [interpreter, "-m", "venv", "--clear", str(folder)]
    elif shutil.which("uv"):
        command = ["uv", "venv", "--quiet", "--seed", "--clear", "--python", python, str(folder)]
    else:
        return f"there is no python{python} on the search path, and no uv to fetch one"
    if subprocess.run(command).returncode:
        return f"`{' '.join(command)}` failed"
    return None


def install(folder: Path, torch: str) -> bool:
    """Install the requirements and this package into an environment, and return whether that succeeded."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = folder / "requirements.txt"
    wanted.write_text(requirements(torch))
    itself = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    return all(subprocess.run([*pip, *rest]).returncode == 0 for rest in (["--requirement", str(wanted)], itself))


def run(python: str, torch: str, root: Path, tests: list[str]) -> str:
    """Test one combination and return its result as a short text, `skipped: ...` where it has no interpreter."""
    folder = root / f"torch-{torch}-python-{python}"
    installed = folder / "installed"
    wanted = requirements(torch)
    if not installed.exists() or installed.read_text() != wanted:
        print(f"{folder}: installing, some minutes and 6 GB", flush=True)
        if not (folder / "bin" / "python").exists() and (reason := make_environment(python, folder)) is not None:
            return f"skipped: {reason}"
        if not install(folder, torch):
            return "skipped: its packages could not be installed (see above)"
        installed.write_text(wanted)
    print(f"{folder}: testing", flush=True)
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-m", "not slow", *(tests or ["--numprocesses", "auto"])]
    command += ["-p", "no:cacheprovider"]  # the cache is for failures with the versions of `make install`
    outcome = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    return "passed" if outcome == 0 else f"FAILED (pytest's status {outcome})"


def main() -> None:
    """Test every combination, and exit with status 1 unless all with an interpreter passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=list(TORCHVISION), choices=list(TORCHVISION))
    parser.add_argument("--python", nargs="+", default=["3.10", "3.12"], help="versions, such as 3.10")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions", help="folder of the environments")
    parser.add_argument("tests", nargs="*", help="test files; by default all fast tests in several processes")
    arguments = parser.parse_args()
    results = {
        f"torch {torch}, Python {python}": run(python, torch, arguments.folder.resolve(), arguments.tests)
        for torch in arguments.torch
        for python in arguments.python
    }
    for combination, result in results.items():
        print(f"{combination}: {result}")
    if not any(result == "passed" for result in results.values()):
        print("nothing was tested to its end.")
    sys.exit(any(result.startswith("FAILED") for result in results.values()) or "passed" not in results.values())


if __name__ == "__main__":
    main()
