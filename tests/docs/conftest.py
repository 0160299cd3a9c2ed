"""A folder with the files and runs that the examples of the documentation name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordgt

from .workspace import make_workspace, train_quickly


@pytest.fixture(scope="session")
def finished_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made once. No test changes it."""
    return make_workspace(tmp_path_factory.mktemp("documentation"))


@pytest.fixture(scope="session")
def shared_workspace(finished_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which tests leave what they write."""
    return Path(shutil.copytree(finished_workspace, tmp_path_factory.mktemp("shared") / "work"))


@pytest.fixture
def workspace(shared_workspace: Path, monkeypatch: pytest.MonkeyPatch, restored_registries: Any) -> Iterator[Path]:
    """The shared folder as the current one. What a test registers is forgotten afterwards."""
    monkeypatch.chdir(shared_workspace)
    monkeypatch.setenv("CORDGT_DATA", str(shared_workspace / "datasets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_workspace / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cordgt, "train", train_quickly, raising=False)
    with restored_registries():
        yield shared_workspace
