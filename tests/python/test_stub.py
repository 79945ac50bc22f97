"""The stub of the extension and the extension say the same."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import ringcoll
from ringcoll import _core


def stub_names() -> dict[str, set[str]]:
    """Class to methods; functions of the module under ""."""
    tree = ast.parse((Path(ringcoll.__file__).parent / "_core.pyi").read_text())
    names: dict[str, set[str]] = {"": set()}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {
                item.name for item in node.body if isinstance(item, ast.FunctionDef)
            }
        elif isinstance(node, ast.FunctionDef):
            names[""].add(node.name)
    return names


def public(owner: object) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def test_the_stub_names_what_there_is():
    stub = stub_names()
    classes = {name for name, value in vars(_core).items() if inspect.isclass(value)}
    assert classes == set(stub) - {""}
    for name in classes:
        assert public(getattr(_core, name)) == stub[name] - {"__init__"}, name
    assert public(_core) - classes == stub[""]


def test_the_stub_has_the_parameters_of_the_extension():
    tree = ast.parse((Path(ringcoll.__file__).parent / "_core.pyi").read_text())
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for method in (item for item in owner.body if isinstance(item, ast.FunctionDef)):
            if method.decorator_list or (method.name == "__init__" and owner.name == "Request"):
                continue
            signature = getattr(getattr(_core, owner.name), method.name).__doc__.splitlines()[0]
            written = [argument.arg for argument in method.args.args]
            assert re.findall(r"(\w+): ", signature.split(" -> ")[0]) == written, signature


def test_the_package_is_typed_and_documented():
    assert (Path(ringcoll.__file__).parent / "py.typed").exists()
    for name in ringcoll.__all__:
        value = getattr(ringcoll, name)
        if callable(value):
            assert value.__doc__, name
    for name, method in vars(ringcoll.Communicator).items():
        if not name.startswith("_") and callable(method):
            assert method.__doc__, name


def test_versions_agree():
    assert _core.version() == ringcoll.__version__
    assert _core.abi_version() >= 1
