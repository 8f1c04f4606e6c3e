"""Private names of torch, Lightning and jsonargparse are in one module of a package, or in none."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection
from pathlib import Path

import pytest
from torch import nn

REPOSITORY = Path(__file__).parents[1]
COMPAT = {"performer_string": "utils/_compat.py", "train": "_compat.py", "eval": None}  # the module of each package
LIBRARIES = {"torch", "lightning", "jsonargparse", "argparse", "numpy", "random", "timm"}
PUBLIC = {"_replace", "_asdict", "_fields"}  # of named tuples
# torch's extension points for moving a module, saving and loading its weights, which have no public way.
OVERRIDES = {"_apply", "_save_to_state_dict", "_load_from_state_dict"}
# Private attributes of torch's classes that objects of the library have or inherit.
ATTRIBUTES = {"_version", "_is_replica", "_former_parameters"}
ATTRIBUTES |= {name for name in vars(nn.MultiheadAttention(2, 1)) if name.startswith("_")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of attributes of a name, or an empty string."""
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.Module) -> dict[str, str]:
    """Return the dotted name in its library of every name that a module imports from one of `LIBRARIES`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_libraries = [(x, x.name.split(".")[0]) for x in node.names if x.name.split(".")[0] in LIBRARIES]
            names |= {(x.asname or root): (x.name if x.asname else root) for x, root in of_libraries}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names |= {(x.asname or x.name): f"{node.module}.{x.name}" for x in node.names}
    return names


def own_names(tree: ast.Module) -> set[str]:
    """Return the private names that a module gives to its functions, fields and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif dotted_name(node.value) == "self":
                names.add(node.attr)
        register = isinstance(node, ast.Call) and dotted_name(node.func) == "self.register_buffer"
        if register and node.args and isinstance(node.args[0], ast.Constant):
            names.add(node.args[0].value)
    return set(filter(is_private, names))


def private_names(tree: ast.Module, own: Collection[str] = ()) -> set[str]:
    """Return the private names of others that a module uses; `own` are those of the repository."""
    names, known = imported(tree), {*own, *OVERRIDES, *PUBLIC}
    used = {name for name in names.values() if any(map(is_private, name.split(".")))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *rest = dotted_name(node).split(".")
            if root in names and any(map(is_private, rest)):
                used.add(".".join([names[root], *rest]))
            if node.attr in ATTRIBUTES or (is_private(node.attr) and node.attr not in known):
                used.add(node.attr)
            inherited = isinstance(node.value, ast.Call) and dotted_name(node.value.func) == "super"
            if inherited and is_private(node.attr) and node.attr not in OVERRIDES:
                used.add(f"super().{node.attr}")
        named = isinstance(node, ast.Call) and dotted_name(node.func) in ("getattr", "hasattr") and len(node.args) > 1
        if named and isinstance(node.args[1], ast.Constant) and node.args[1].value in ATTRIBUTES:
            used.add(node.args[1].value)
    return used


@functools.cache
def modules() -> dict[Path, ast.Module]:
    """Return the modules of all packages."""
    return {path: ast.parse(path.read_text()) for name in COMPAT for path in (REPOSITORY / name).rglob("*.py")}


@functools.cache
def own_names_of_all() -> set[str]:
    """Return the private names that the modules of all packages give to their own."""
    return set().union(*(own_names(tree) for path, tree in modules().items() if path.name != "_compat.py"))


@pytest.mark.parametrize("package", COMPAT)
def test_private_names_are_in_compat_only(package):
    own = own_names_of_all()
    folder = REPOSITORY / package
    here = {path.relative_to(folder).as_posix(): path for path in modules() if path.is_relative_to(folder)}
    used = {name: private_names(modules()[path], own) for name, path in here.items()}
    if COMPAT[package]:
        assert len(used.pop(COMPAT[package])) > 3
    assert {path: names for path, names in used.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C.thing()",
        "import torch as t\nt.compiler._flag",
        "from torch import _dynamo",
        "from torch._dynamo import reset",
        "from torch.autograd import forward_ad as f\nf._current_level",
        "x._version",
        "getattr(module, '_is_replica', False)",
        "class A(B):\n    def f(self): super()._call_impl()",
        "import lightning as L\nL.Trainer._x()",
        "from jsonargparse._core import f",
        "trainer.fit_loop._iteration_based_training = 1",
        "def f(parser): return parser._actions",
        "class A(B):\n    def f(self): self._qkv_same_embed_dim = False",
        "from timm.models._features import f",
        "class A(B):\n    def f(self): return self._from_the_base",
    ],
)
def test_private_names_are_recognised(source):
    assert private_names(ast.parse(source))


def test_own_names_are_no_private_names_of_others():
    tree = ast.parse("_N = 1\nclass A:\n    def _f(self): self._x = self.y._replace(a=_N); return self._f(self._x)")
    assert private_names(tree, own_names(tree)) == set()
