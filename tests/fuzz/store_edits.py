"""A store that someone edited: `edits` lists them, `Stores` tries them.

Every attempt must be refused with the library's own error, or give the answers of the original store; and nothing
outside the store may change. Edits of arrays come in two kinds: with the old checksums, as damage leaves them, and
*signed*, with new checksums, as an attacker writes them.

    python tests/fuzz/fuzz.py --what stores --count 3000          # random ones of all edits, in processes of their own
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from cordgt.errors import CordgtError, DataError
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.io.convert import append_to, convert_to_store
from cordgt.io.readers import read_events
from cordgt.store.masked_index import INDEX_FILE, verify_masked_indexes
from cordgt.store.store import STORE_FILE, _content_hash, open_store
from cordgt.tasks.histories import build_history
from cordgt.workflows.train import train

Apply = Callable[[Path, Path], None]  # gets the store, and a folder outside it
MISSING = object()
VALUES: list[Any] = [MISSING, None, -1, 0, 1, 2**70, 1.5, "x", "", "\x1b[2J\n", True, [], {}, [[1, "x"]], {"a": 1}]
DTYPES = ["O", "|O", "<f2", "<i2", "<u8", "S8", "<i8,<i8", ">i8", "<M8[us]", "int64", "V8", "(2,)<i8", "x" * 10_000]
TINY: dict[str, Any] = {"epochs": 1, "batch_size": 30, "heads": 1, "hidden": 4, "fanout": (2, 1), "td_dim": 4}


@dataclass(frozen=True)
class Edit:
    """A named change of a store."""

    name: str
    apply: Apply


# -------------------- the edits


def edits(store: Path) -> list[Edit]:
    """Return all edits of a store that are tried."""
    [masked] = store.glob("masked-*")
    return [
        *_description_edits(store),
        *_array_edits(store),
        *_index_edits(masked, json.loads((masked / INDEX_FILE).read_text())),
        *_folder_edits(store, masked.name),
    ]


def _walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document; of lists only the first and the last."""
    children = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, child in children if isinstance(value, dict) else children[:1] + children[1:][-1:]:
        yield (*path, key)
        yield from _walk(child, (*path, key))


def _changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = json.loads(json.dumps(document))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return document


def write_signed(store: Path, document: dict[str, Any]) -> None:
    """Write ``store.json`` with a valid checksum of its own."""
    content = {k: v for k, v in document.items() if k not in ("format", "version", "sha256")}
    header = {k: document[k] for k in ("format", "version") if k in document} | {"sha256": _content_hash(content)}
    (store / STORE_FILE).write_text(json.dumps(header | content))


def _tricks(file: str, outside: Path) -> list[str]:
    """Return file names that lead out of the store, or to another of its files."""
    folder, name = file.split("/")
    return [
        "../outside/keep", f"{outside}/keep", f"{folder}/../../outside/keep", f"{folder}/../../outside/{name}",
        f"../outside/{name}", f"{folder}/./{name}", f"./{file}", f"{folder}//{name}", f"{file}/", f"{file}\0", name,
        f"{folder}/elapsed", STORE_FILE, f"{folder}", ".", "..", "/dev/zero", f"{outside}/{name}", "data-00000000/../x",
    ]  # fmt: skip


def _description_edits(store: Path) -> Iterator[Edit]:
    document = json.loads((store / STORE_FILE).read_text())
    for path in _walk(document):
        for k, value in enumerate(VALUES):
            name = f"signed {STORE_FILE} {'.'.join(map(str, path))} = {'missing' if value is MISSING else value!r}"
            edited = _changed(document, path, value)

            def apply(store: Path, _: Path, edited: Any = edited, is_signed: bool = True) -> None:
                if is_signed:
                    write_signed(store, edited)
                else:
                    (store / STORE_FILE).write_text(json.dumps(edited))

            yield Edit(name, apply)
            if k == 0:
                yield Edit(f"un{name}", lambda store, _, edited=edited: apply(store, _, edited, False))
    for array in document["arrays"]:
        for trick in range(19):

            def aim(store: Path, outside: Path, array: str = array, trick: int = trick) -> None:
                file = _tricks(document["arrays"][array]["file"], outside)[trick]
                write_signed(store, _changed(document, ("arrays", array, "file"), file))

            yield Edit(f"file of {array}, trick {trick}", aim)
        for dtype in DTYPES:
            edited = _changed(document, ("arrays", array, "dtype"), dtype)
            yield Edit(f"type of {array} = {dtype[:10]}", lambda store, _, edited=edited: write_signed(store, edited))
    more = document | {"arrays": document["arrays"] | {"more": document["arrays"]["src"]}}
    yield Edit("an unknown array", lambda store, _: write_signed(store, more))
    for text in (
        "",
        "{",
        "null",
        "[]",
        "3",
        "[" * 200_000,
        "\0",
        '{"format": "cordgt store", "version": 1e999}',
        "9" * 5000,
    ):
        yield Edit(
            f"{STORE_FILE} = {text[:10]!r}", lambda store, _, text=text: _write(store / STORE_FILE, text.encode())
        )
    yield from _replacements(STORE_FILE, lambda store: store / STORE_FILE)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _replacements(name: str, find: Callable[[Path], Path]) -> Iterator[Edit]:
    """Yield edits that put something else in the place of a file."""

    def put(kind: str) -> Apply:
        def apply(store: Path, outside: Path) -> None:
            path = find(store)
            content = path.read_bytes() if path.is_file() else b""
            path.unlink(missing_ok=True)
            if kind == "folder":
                path.mkdir()
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "socket":
                here = os.getcwd()
                os.chdir(path.parent)  # the name of a socket must be short
                socket.socket(socket.AF_UNIX).bind(path.name)
                os.chdir(here)
            elif kind == "device":
                path.symlink_to("/dev/zero")
            elif kind == "link":
                (outside / "copy").write_bytes(content)
                path.symlink_to(outside / "copy")
            elif kind == "hard link":
                (outside / "copy").write_bytes(content)
                os.link(outside / "copy", path)
            elif kind == "dangling link":
                path.symlink_to(outside / "new")
            elif kind == "huge file":
                path.write_bytes(content)
                os.truncate(path, 1 << 33)

        return apply

    kinds = ("missing", "folder", "pipe", "socket", "device", "link", "hard link", "dangling link", "huge file")
    for kind in kinds:
        yield Edit(f"{name}: {kind}", put(kind))


def _bytes_edits() -> dict[str, Callable[[bytes], bytes]]:
    def at(where: float, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
        def apply(content: bytes) -> bytes:
            data = bytearray(content)
            k = min(int(where * len(data)), len(data) - 1)
            data[k] = change(data[k])
            return bytes(data)

        return apply

    return {
        "empty": lambda _: b"",
        "half": lambda content: content[: len(content) // 2],
        "one byte less": lambda content: content[:-1],
        "longer": lambda content: content + b"\xff" * 24,
        "zeros": lambda content: bytes(len(content)),
        "ones": lambda content: b"\xff" * len(content),
        "sevens": lambda content: b"\x7f" * len(content),
        "reversed": lambda content: content[::-1],
        "rotated": lambda content: content[8:] + content[:8],
        **{f"flip at {where}": at(where, lambda byte: byte ^ 1) for where in (0, 0.3, 0.5, 0.9, 1)},
        **{f"high at {where}": at(where, lambda byte: byte ^ 0x80) for where in (0.1, 0.4, 0.7, 1)},
    }


def _array_edits(store: Path) -> Iterator[Edit]:
    document = json.loads((store / STORE_FILE).read_text())
    for name, about in document["arrays"].items():
        file = about["file"]
        for kind, change in _bytes_edits().items():

            def damage(store: Path, _: Path, file: str = file, change: Any = change) -> None:
                (store / file).write_bytes(change((store / file).read_bytes()))

            def damage_signed(
                store: Path, outside: Path, name: str = name, file: str = file, damage: Apply = damage
            ) -> None:
                damage(store, outside)
                content, about = (store / file).read_bytes(), document["arrays"][name]
                row_bytes = np.dtype(about["dtype"]).itemsize * max(about["width"], 1)
                parts, start = [], 0
                for rows, _ in about["parts"]:
                    stop = start + rows * row_bytes
                    parts.append([rows, hashlib.sha256(content[start:stop]).hexdigest()])
                    start = stop
                write_signed(store, _changed(document, ("arrays", name, "parts"), parts))

            yield Edit(f"{name}: {kind}", damage)
            if name != "label":  # signed labels are valid labels
                yield Edit(f"signed {name}: {kind}", damage_signed)
        yield from _replacements(name, lambda store, file=file: store / file)


def _index_edits(masked: Path, document: dict[str, Any]) -> Iterator[Edit]:
    folder = masked.name
    for path in _walk(document):
        for value in (*VALUES, *(DTYPES if path[-1] == "dtype" else ())):
            text = json.dumps(_changed(document, path, value)).encode()
            shown = "missing" if value is MISSING else repr(value)[:20]
            yield Edit(
                f"{INDEX_FILE} {'.'.join(map(str, path))} = {shown}",
                lambda store, _, text=text: _write(store / folder / INDEX_FILE, text),
            )
    for trick in ("../../outside/nbr", "/dev/zero", "../nbr"):
        arrays = {trick if name == "nbr" else name: about for name, about in document["arrays"].items()}
        text = json.dumps(document | {"arrays": arrays}).encode()
        yield Edit(f"{INDEX_FILE} {trick}", lambda store, _, text=text: _write(store / folder / INDEX_FILE, text))
    for name in document["arrays"]:
        for kind, change in _bytes_edits().items():
            for is_signed in (False, True):

                def damage(
                    store: Path, _: Path, name: str = name, change: Any = change, is_signed: bool = is_signed
                ) -> None:
                    path = store / folder / name
                    content = change(path.read_bytes())
                    path.write_bytes(content)
                    if is_signed:
                        edited = _changed(document, ("arrays", name, "sha256"), hashlib.sha256(content).hexdigest())
                        (store / folder / INDEX_FILE).write_text(json.dumps(edited))

                yield Edit(f"{'signed ' * is_signed}index {name}: {kind}", damage)
        yield from _replacements(f"index {name}", lambda store, name=name: store / folder / name)
    yield from _replacements(INDEX_FILE, lambda store: store / folder / INDEX_FILE)


def _folder_edits(store: Path, masked: str) -> Iterator[Edit]:
    names = sorted({p.name for p in store.iterdir() if p.is_dir()})
    for name in names:

        def move_out(store: Path, outside: Path, name: str = name) -> None:
            os.rename(store / name, outside / name)
            (store / name).symlink_to(outside / name)

        def only_link(store: Path, outside: Path, name: str = name) -> None:
            shutil.rmtree(store / name)
            (store / name).symlink_to(outside)

        yield Edit(f"{name} moved out and linked", move_out)
        yield Edit(f"{name} links to a folder", only_link)
    for name in (
        "masked.lock",
        "state.json",
        ".store.json.1.part",
        "data-00000000",
        "index-00000000",
        "masked-0",
        masked,
    ):
        yield from _replacements(name, lambda store, name=name: _cleared(store / name))
        yield Edit(
            f"{name} links to a folder", lambda store, outside, name=name: _cleared(store / name).symlink_to(outside)
        )
    for folder in [name for name in names if name != masked]:
        place = f"{folder}/stray"
        yield from _replacements(place, lambda store, place=place: store / place)
        yield Edit(
            f"{place} links to a folder", lambda store, outside, place=place: (store / place).symlink_to(outside)
        )


def _cleared(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


# -------------------- the attempts


def _stream(n: int, start: int) -> EventStream:
    """Return events with text ids in two spaces, labels and features: a store with every array but ``name``."""
    draw = np.random.default_rng(start)
    src, dst = draw.integers(0, 9 + start // 100, (2, n))
    t = start + draw.choice([0, 1, 3], n).cumsum()
    return EventStream.from_columns(
        [f"u{k}" for k in src], [f"v{k}" for k in dst], t, name="log", shared_ids=False, label=np.arange(n),
        edge_x=draw.normal(size=(n, 2)).astype(np.float32),
    )  # fmt: skip


def fingerprint(store: Path, run: Path) -> str:
    """Return a hash of what a user gets from a store and from a run on it: events, lookups, scores, metrics."""
    stream = read_events(store)
    loaded = Run.load(run, "cpu")
    index = build_history(stream, seed=0, device=torch.device("cpu")).index
    node, other, cut = np.meshgrid(
        np.arange(-1, stream.n_nodes + 1), np.arange(-1, stream.n_nodes + 1), [0, 20, stream.n_events]
    )
    grid = [torch.from_numpy(x.reshape(-1)) for x in (node, other, cut)]
    assert stream.backing is not None
    masked = stream.backing.masked_index(stream.src, stream.dst, np.arange(stream.n_nodes) == 3)
    answers: list[Any] = [
        stream.ids.decode(stream.src).to_pylist(), stream.ids.decode(stream.dst).to_pylist(), stream.t.tolist(),
        stream.ids.encode(["u1", "v1", "x"], "src").tolist(), stream.ids.encode(["u1", "v2"], "dst").tolist(),
        np.asarray(stream.edge_x).tolist(), np.asarray(stream.node_x).tolist(), stream.elapsed.tolist(),
        index.degree(grid[0], grid[2]).tolist(), [x.tolist() for x in index.pair_history(*grid)],
        {name: np.asarray(x).tolist() for name, x in masked.arrays.items()}, dict(masked.longest),
        loaded.score(["u1", "u2", "new"], ["v1", "v2", "v3"]).tolist(), str(loaded.evaluate(split="test")),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()


def files_of(folder: Path) -> dict[str, Any]:
    """Return kind, size, time and content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = os.lstat(path)
        content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 20 else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


@dataclass
class Stores:
    """Edited stores, each with a run that was trained on it, before its last events were appended."""

    folder: Path

    def __post_init__(self) -> None:
        self.store, self.run, self.outside = (self.folder / name for name in ("log.store", "run", "outside"))
        self.original = self.folder / "original"
        events = _stream(60, 0)
        with_nodes = replace(events, node_x=np.arange(2.0 * events.n_nodes, dtype=np.float32).reshape(-1, 2))
        convert_to_store(with_nodes, self.store)
        train(read_events(self.store), out=self.run, device="cpu", report=False, **TINY)
        append_to(self.store, _stream(20, 1000))
        fingerprint(self.store, self.run)  # makes the training indexes
        for extra in sorted(self.store.glob("masked-*"), key=lambda p: p.stat().st_mtime)[:-1]:
            shutil.rmtree(extra)
        shutil.copytree(self.store, self.original)
        self.expected = fingerprint(self.store, self.run)
        self.edits = edits(self.original)
        append_to(self.store, _stream(10, 2000))
        self.expected_later = fingerprint(self.store, self.run)

    def prepare(self, rng: Random) -> Callable[[], str]:
        edit = rng.choice(self.edits)
        return lambda: self.attempt(edit)

    def attempt(self, edit: Edit) -> str:
        """Return how an edited store is used; Misread if an answer differs or something outside it changes."""
        from .targets import Misread

        for folder in (self.store, self.outside):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.original, self.store)
        self.outside.mkdir()
        for name in ("keep", "nbr", "src", "copy"):
            (self.outside / name).write_bytes(b"precious" * 500)
        (self.outside / "folder").mkdir()
        edit.apply(self.store, self.outside)
        before = files_of(self.outside)
        outcomes = []
        try:
            for expected in (self.expected, self.expected_later):
                error: CordgtError | None = None
                try:
                    if fingerprint(self.store, self.run) != expected:
                        raise Misread(f"{edit.name}: other answers")
                except CordgtError as problem:
                    error = problem
                outcomes.append("read" if error is None else "refused")
                with suppress(CordgtError):
                    open_store(self.store).verify()
                    verify_masked_indexes(self.store)
                if expected == self.expected:
                    store = files_of(self.store)
                    try:
                        append_to(self.store, _stream(10, 2000))
                    except DataError:
                        if files_of(self.store).keys() < store.keys() and error is not None:
                            raise Misread(f"{edit.name}: a refused append removed files") from None
                        break
        finally:
            if files_of(self.outside) != before:
                raise Misread(f"{edit.name}: something outside the store has changed")
        return f"{outcomes[0]}, append {outcomes[1] if len(outcomes) > 1 else 'refused'}"
