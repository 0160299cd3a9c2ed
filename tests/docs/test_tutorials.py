"""The notebooks of the tutorials run in their small form, and their outputs are stored."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .workspace import DOCS, ROOT

NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def tool() -> Any:
    """The module ``docs/tools/run_notebooks.py``."""
    spec = importlib.util.spec_from_file_location("run_notebooks", DOCS / "tools" / "run_notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tool: Any, tmp_path: Path, monkeypatch: Any, restored_registries: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with restored_registries():
        stored, made = json.loads(path.read_text(encoding="utf-8")), tool.run_notebook(path, small=True)
    for old, new in zip(stored["cells"], made["cells"], strict=True):
        if old["cell_type"] == "code":
            kinds = [[output["output_type"] for output in cell["outputs"]] for cell in (old, new)]
            assert kinds[0] == kinds[1], "".join(old["source"])


def test_there_are_three_tutorials() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["mail", "own-model", "shop"]
