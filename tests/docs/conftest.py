"""A folder with the files and runs that the examples of the documentation name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordgt

from .workspace import make_workspace, train_quickly


@pytest.fixture(scope="session")
def finished_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made once."""
    return make_workspace(tmp_path_factory.mktemp("documentation"))


@pytest.fixture
def workspace(finished_workspace: Path, monkeypatch: pytest.MonkeyPatch, restored_registries: Any) -> Iterator[Path]:
    """The folder as the current one. What a test registers is forgotten afterwards."""
    monkeypatch.chdir(finished_workspace)
    monkeypatch.setenv("CORDGT_DATA", str(finished_workspace / "datasets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(finished_workspace / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cordgt, "train", train_quickly, raising=False)
    with restored_registries():
        yield finished_workspace
