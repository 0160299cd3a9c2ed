"""Atomic writes, and errors about files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cordgt.errors import DataError
from cordgt.files import is_npy, read_npy, sibling_names, write_atomically


def test_failed_atomic_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")

    def fail(part: Path) -> None:
        part.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_atomically(target, fail)
    assert [k.name for k in tmp_path.iterdir()] == ["x"]
    assert target.read_text() == "old"
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "no" / "x", fail)


def test_is_npy_checks_content_not_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    (tmp_path / "a.npy").rename(tmp_path / "a.csv")
    (tmp_path / "b.npy").write_text("1,2")
    assert [is_npy(tmp_path / k) for k in ("a.csv", "b.npy", "none", ".")] == [True, False, False, False]
    assert read_npy(tmp_path / "a.csv").tolist() == [[1, 1, 1], [1, 1, 1]]


def test_read_npy_rejects_archives_and_missing_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", np.ones((2, 3)))
    with pytest.raises(DataError, match=r"a.npz holds an archive; a matrix of numbers was expected"):
        read_npy(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"no file .*b.npz. Did you mean 'a.npz'"):
        read_npy(tmp_path / "b.npz")


def test_sibling_names(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert sibling_names(tmp_path / "y") == ["x"]
    assert sibling_names(tmp_path / "no" / "y") == []
