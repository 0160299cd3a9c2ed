"""Triton kernels are loaded by module name, and only on a GPU, so wrong names are caught here without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cordgt.history.index import TemporalIndex
from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.runtime import kernel_loader as kernels

PACKAGE = Path(kernels.__file__).parents[1]
# Kernel modules by the module that loads them: a missing one is a lost fast path.
LOADED = {
    "history/collaborative": {"history.kernels.collaborative"},
    "history/index": {"history.kernels.trees"},
    "history/pair_features": {"history.kernels.pair_features"},
    "models/cordgt": {"nn.kernels.encoder", "nn.kernels.tokens"},
    "nn/positional_encoding": {"nn.kernels.sinusoids"},
}
# Functions called of each kernel module; those called through `TemporalIndex.triton_kernels` are collected below.
CALLED = {
    "history.kernels.collaborative": {"collaborative_features"},
    "history.kernels.pair_features": {"slot_features", "pair_features"},
    "history.kernels.trees": {"build_queries"},
    "nn.kernels.encoder": {"supports_shape", "encode"},
    "nn.kernels.sinusoids": {"sinusoids"},
    "nn.kernels.tokens": {"supports_shape", "tokens"},
}


def loaded_in(path: Path) -> Iterator[str]:
    """Names passed to ``kernels.load_kernels`` in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kernels.load_kernels":
            assert isinstance(node.args[0], ast.Constant), (
                f"{path.name}: pass the name as a literal, so that it can be checked"
            )
            yield node.args[0].value


def functions_of(name: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_kernel_module_is_loaded_where_expected() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "kernels"]
    loaded = {path.relative_to(PACKAGE).with_suffix("").as_posix(): set(loaded_in(path)) for path in modules}
    assert {module: names for module, names in loaded.items() if names} == LOADED


@pytest.mark.parametrize("name", CALLED)
def test_kernel_modules_define_the_functions_that_are_called(name: str) -> None:
    assert functions_of(name) >= CALLED[name]


def called_through_index() -> Iterator[str]:
    """Attributes of ``fused``, as modules call the result of `TemporalIndex.triton_kernels`."""
    for path in (PACKAGE / "history" / f"{name}.py" for name in ("index", "context", "distance")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fused":
                yield node.attr


def test_functions_called_through_the_index_exist() -> None:
    called = set(called_through_index())
    assert len(called) == 5
    assert called <= functions_of("history.kernels.trees")


def test_kernels_are_loaded_on_a_gpu_unless_plain_torch_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_has_triton", lambda: True, raising=False)
    monkeypatch.setattr(kernels, "import_module", lambda name: name)
    monkeypatch.delenv("CORDGT_PLAIN", raising=False)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert (
        kernels.load_kernels("history.kernels.trees", cuda) == "cordgt.history.kernels.trees"
        and kernels.load_kernels("history.kernels.trees", cpu) is None
    )
    with kernels.plain_torch():
        assert kernels.load_kernels("history.kernels.trees", cuda) is None


def test_an_index_has_the_members_that_kernels_read() -> None:
    members = {name for name in vars(IndexArrays) if not name.startswith("_")}
    index = TemporalIndex.build(np.array([0]), np.array([1]), np.array([0.0]), 2)
    assert len(members) == 11
    assert all(hasattr(index, name) for name in members)
