"""Fused kernels are found by the name of their module, on a GPU alone: a wrong name would show only there."""

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
# The module of kernels that serves, by the module that asks for it: one that is gone is a fast path lost.
ASKED = {
    "history/index": {"history.kernels.trees"},
    "history/pair_features": {"history.kernels.pair_features"},
    "models/cordgt": {"nn.kernels.encoder", "nn.kernels.tokens"},
    "nn/positional_encoding": {"nn.kernels.sinusoids"},
}
# What is called of each; the same question is asked of `TemporalIndex.fused` in other modules.
CALLED = {
    "history.kernels.pair_features": {"slots", "pairs"},
    "history.kernels.trees": {"ask"},
    "nn.kernels.encoder": {"fits", "encode"},
    "nn.kernels.sinusoids": {"sinusoids"},
    "nn.kernels.tokens": {"fits", "tokens"},
}


def asked_in(path: Path) -> Iterator[str]:
    """Names given to ``kernels.fused`` in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kernels.fused":
            assert isinstance(node.args[0], ast.Constant), f"{path.name}: the name must stand there, to be checked"
            yield node.args[0].value


def functions_of(name: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_kernel_is_asked_for_where_it_was() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "kernels"]
    asked = {path.relative_to(PACKAGE).with_suffix("").as_posix(): set(asked_in(path)) for path in modules}
    assert {module: names for module, names in asked.items() if names} == ASKED


@pytest.mark.parametrize("name", CALLED)
def test_a_name_leads_to_its_functions(name: str) -> None:
    assert functions_of(name) >= CALLED[name]


def past_called() -> Iterator[str]:
    """Attributes of ``past``, as `TemporalIndex.fused` is called wherever it is asked."""
    for path in (PACKAGE / "history" / f"{name}.py" for name in ("index", "context", "distance")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "past":
                yield node.attr


def test_what_reads_the_past_is_there() -> None:
    called = set(past_called())
    assert len(called) >= 4
    assert called <= functions_of("history.kernels.trees")


def test_kernels_serve_a_gpu_unless_plain_operations_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_present", lambda: True)
    monkeypatch.setattr(kernels, "import_module", lambda name: name)
    monkeypatch.delenv(kernels.PLAIN, raising=False)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert (
        kernels.fused("history.kernels.trees", cuda) == "cordgt.history.kernels.trees"
        and kernels.fused("history.kernels.trees", cpu) is None
    )
    with kernels.plainly():
        assert kernels.fused("history.kernels.trees", cuda) is None


def test_an_index_has_what_the_kernels_read() -> None:
    members = {name for name in vars(IndexArrays) if not name.startswith("_")}
    index = TemporalIndex.build(np.array([0]), np.array([1]), np.array([0.0]), 2)
    assert len(members) == 15
    assert all(hasattr(index, name) for name in members)
