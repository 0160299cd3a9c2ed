"""Atomic writes, and errors about files that cannot be read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from cordgt import files
from cordgt.errors import DataError, RunError
from cordgt.files import is_npy, read_npy, read_regular_file, sibling_names, write_atomically, write_text


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


def test_atomic_write_flushes_the_file_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(files, "sync_file", lambda path: synced.append((path.name[:3], (tmp_path / "x").exists())))
    write_text(tmp_path / "x", "new")
    assert synced == [(".x.", False), (tmp_path.name[:3], True)]  # the file before the rename, the folder after it


def test_read_regular_file_reads_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular_file(path, max_bytes=5) == b"12345"
    with pytest.raises(DataError, match="more than 4 bytes"):
        read_regular_file(path, max_bytes=4)
    with pytest.raises(RunError, match="y is missing"):
        read_regular_file(tmp_path / "y", max_bytes=4, error=RunError)
    with pytest.raises(DataError, match="not a valid file name"):
        read_regular_file(tmp_path / "a\0b", max_bytes=4)
    with pytest.raises(DataError, match="cannot be read: Not a directory"):
        read_regular_file(path / "z", max_bytes=4)


@pytest.mark.parametrize("kind", ["folder", "link", "loop", "pipe", "socket", "device"])
def test_read_regular_file_refuses_other_kinds(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    (tmp_path / "other").write_bytes(b"secret")
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(tmp_path / "other")
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            socket.socket(socket.AF_UNIX).bind("x")
        case "device":
            path = Path("/dev/zero")
    with pytest.raises(DataError, match="is a folder, link, pipe, socket or device"):
        read_regular_file(path, max_bytes=10)
