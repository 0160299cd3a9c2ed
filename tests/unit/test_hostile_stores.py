"""Stores that someone edited on purpose: refused before anything is touched. `tests/fuzz/store_edits.py` has more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cordgt import files
from cordgt.errors import DataError
from cordgt.events.backing import INDEX_ARRAYS
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.io.convert import append_to, convert_to_store
from cordgt.io.readers import read_events
from cordgt.store import build, check_cache, consistency
from cordgt.store.store import STORE_FILE, _content_hash, open_store


def stream(n: int = 60, start: int = 0, nodes: int = 9) -> EventStream:
    draw = np.random.default_rng(start)
    src, dst = draw.integers(0, nodes, (2, n))
    t = start + draw.choice([0, 1, 3], n).cumsum()
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name="log")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return convert_to_store(stream(), tmp_path / "log.store").path


def edit(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change ``store.json`` and give it a valid checksum."""
    document = json.loads((store / STORE_FILE).read_text())
    change(document)
    content = {k: v for k, v in document.items() if k not in ("format", "version", "sha256")}
    (store / STORE_FILE).write_text(json.dumps(document | {"sha256": _content_hash(content)}))


def edit_array(store: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change the values of an array and sign them."""
    array = open_store(store).arrays[name]
    values = np.fromfile(store / array.file, array.dtype)
    change(values)
    values.tofile(store / array.file)
    parts = [[array.rows, hashlib.sha256(values.tobytes()).hexdigest()]]
    edit(store, lambda document: document["arrays"][name].update(parts=parts))


# -------------------- store.json


@pytest.mark.parametrize(
    "file",
    [
        "../outside/keep",
        "{outside}/keep",
        "data-00000000/../../outside/keep",
        "{folder}/../../outside/src",
        "../outside/src",
        "{folder}/./src",
        "{folder}/dst",
        "src",
    ],
)
def test_no_file_outside_the_store_is_touched(made: Path, tmp_path: Path, file: str) -> None:
    """An append truncates the store's files and removes others beside them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("keep", "src", "other"):
        (outside / name).write_bytes(b"x" * 10_000)
    folder = open_store(made).arrays["src"].file.split("/")[0]
    name = file.format(outside=outside, folder=folder)
    edit(made, lambda document: document["arrays"]["src"].update(file=name))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for action in (read_events, lambda store: append_to(store, stream(5, 1000)), lambda store: open_store(store)):
        with pytest.raises(DataError, match="the file of 'src' is not in the store"):
            action(made)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("dtype", ["O", "|O", "<f8", ">i8", "S8", "<i8,<i8", 7, None, ["<i8"]])
def test_only_the_type_of_an_array_is_accepted(made: Path, dtype: Any) -> None:
    """Bytes of a file must never become Python objects."""
    edit(made, lambda document: document["arrays"]["src"].update(dtype=dtype))
    with pytest.raises(DataError, match=r"store\.json is damaged: .*(type|'dtype').*Restore a copy"):
        open_store(made)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "arrays": lambda d: d.update(arrays=[]),
    "array": lambda d: d["arrays"].update(src=3),
    "no array": lambda d: d["arrays"].pop("nbr"),
    "unknown": lambda d: d["arrays"].update(more=d["arrays"]["src"]),
    "parts": lambda d: d["arrays"]["src"].update(parts=7),
    "part": lambda d: d["arrays"]["src"].update(parts=[60]),
    "rows": lambda d: d["arrays"]["src"]["parts"][0].__setitem__(0, True),
    "more rows": lambda d: d["arrays"]["src"]["parts"][0].__setitem__(0, 61),
    "negative": lambda d: d["arrays"]["src"]["parts"][0].__setitem__(0, -60),
    "huge": lambda d: d["arrays"]["src"]["parts"][0].__setitem__(0, 2**70),
    "no checksum": lambda d: d["arrays"]["src"]["parts"][0].__setitem__(1, ""),
    "width": lambda d: d["arrays"]["src"].update(width=2),
    "generations": lambda d: d.update(generations=[]),
    "generation": lambda d: d.update(generations=["x"]),
    "events": lambda d: d["generations"][0].update(events="60"),
    "nodes": lambda d: d["generations"][0].update(nodes=8),
    "fingerprint": lambda d: d["generations"][0].update(fingerprint=None),
    "longest": lambda d: d.update(longest={"max_degree": 1}),
    "longest value": lambda d: d["longest"].update(max_pairs=1.5),
    "time": lambda d: d.update(time="later"),
    "shared": lambda d: d.update(shared="yes"),
    "two spaces": lambda d: d.update(shared=False),
    "notes": lambda d: d.update(notes=[1]),
    "name": lambda d: d.update(name=None),
    "columns": lambda d: d.update(columns=[1]),
    "column": lambda d: d.update(columns={"src": {"a": 1}}),
    "version": lambda d: d.update(version="1"),
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_wrong_values_are_refused(made: Path, key: str) -> None:
    edit(made, WRONG[key])
    with pytest.raises(DataError, match=r"store\.json is damaged"):
        open_store(made)


def test_an_unknown_column_option_is_not_used(made: Path, tmp_path: Path) -> None:
    edit(made, lambda document: document.update(columns={"source": "x", "src": "who"}))
    (tmp_path / "new.csv").write_text("who,dst,time\n1,2,5000\n")
    assert append_to(made, tmp_path / "new.csv").n_events == 61


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, '{"format": "cordgt store", "version": 1}', "\0"])
def test_an_unreadable_description_is_refused(made: Path, text: str) -> None:
    (made / STORE_FILE).write_text(text)
    with pytest.raises(DataError, match=r"store\.json"):
        open_store(made)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "no.store"])
def test_names_that_no_store_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_store(tmp_path / name)


# -------------------- files


@pytest.mark.parametrize("name", [STORE_FILE, "src", "nbr"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "device"])
def test_other_things_in_place_of_a_file(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    path = made / (name if name == STORE_FILE else open_store(made).arrays[name].file)
    path.rename(tmp_path / "moved")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "moved" if kind == "link" else "/dev/zero")
    for action in (read_events, lambda store: append_to(store, stream(5, 1000))):
        with pytest.raises(DataError, match="is a folder, link, pipe, socket or device"):
            action(made)


def test_a_linked_folder_of_arrays_is_refused(made: Path, tmp_path: Path) -> None:
    [data] = made.glob("data-*")
    data.rename(tmp_path / "moved")
    data.symlink_to(tmp_path / "moved")
    with pytest.raises(DataError, match="is not a folder, or a link to one"):
        append_to(made, stream(5, 1000))


def test_an_append_does_not_change_hard_links(made: Path, tmp_path: Path) -> None:
    """A backup by hard links would change with the store."""
    shutil.copytree(made, tmp_path / "backup", copy_function=os.link)
    before = {p: p.stat().st_size for p in tmp_path.rglob("*")}
    assert read_events(made).n_events == 60
    with pytest.raises(DataError, match=r"is a hard link.*Nothing was appended.*real copy"):
        append_to(made, stream(5, 1000))
    assert {p: p.stat().st_size for p in tmp_path.rglob("*")} == before


def test_leftovers_that_are_links_are_removed_and_their_targets_kept(made: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    [data] = made.glob("data-*")
    for link in (made / "index-00000000", made / "masked-0", data / "stray", made / ".store.json.1.part"):
        link.symlink_to(outside)
    (made / "data-mine").mkdir()
    append_to(made, stream(5, 1000))
    assert (outside / "keep").read_text() == "x"
    assert not any(p.is_symlink() for p in made.rglob("*"))
    assert (made / "data-mine").exists(), "no folder of ours has such a name"


def test_replace_needs_a_store(tmp_path: Path) -> None:
    """Another program may have a store.json too."""
    target = tmp_path / "shop"
    (target / "data-00000000").mkdir(parents=True)
    (target / STORE_FILE).write_text('{"shop": 1}')
    with pytest.raises(DataError, match="is not that of a store"):
        convert_to_store(stream(), target, replace=True)
    assert (target / "data-00000000").exists()


# -------------------- arrays with valid checksums


def put(values: Any, place: int, value: Any) -> None:
    values[place] = value


SIGNED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "src": ("src", lambda x: put(x, 5, 10**9)),
    "negative": ("dst", lambda x: put(x, 5, -7)),
    "times": ("t", lambda x: put(x, 5, 10**12)),
    "elapsed": ("elapsed", lambda x: put(x, 5, x[5] + 1)),
    "nan": ("elapsed", lambda x: put(x, 5, np.nan)),
    "tie_start": ("tie_start", lambda x: put(x, 5, 10**9)),
    "row_start": ("row_start", lambda x: put(x, 3, 2**62)),
    "row_start negative": ("row_start", lambda x: put(x, 3, -(2**63))),
    "row order": ("row_start", lambda x: put(x, 3, x[5])),
    "nbr": ("nbr", lambda x: put(x, 3, 2**31 - 1)),
    "pos": ("pos", lambda x: put(x, 3, 2**31 - 1)),
    "nbr_degree": ("nbr_degree", lambda x: put(x, 3, x[3] + 1)),
    "pair_start": ("pair_start", lambda x: put(x, 3, 2**40)),
    "pair_nbr": ("pair_nbr", lambda x: put(x, 3, -1)),
    "pair_pos_start": ("pair_pos_start", lambda x: put(x, 3, 2**40)),
    "pair_pos": ("pair_pos", lambda x: put(x, 3, 2**31 - 1)),
    "pair_pos in range": ("pair_pos", lambda x: put(x, 3, x[3] ^ 1)),
    "name": ("name", lambda x: put(x, 3, x[4])),
    "name_node": ("name_node", lambda x: put(x, 3, 2**31 - 1)),
    "name_hash": ("name_hash", lambda x: put(x, 3, 0)),
}


@pytest.mark.parametrize("key", SIGNED)
def test_arrays_that_do_not_fit_each_other_are_refused(made: Path, key: str) -> None:
    """Their checksums are valid. Compiled loops would read outside the arrays, or answers would differ."""
    edit_array(made, *SIGNED[key])
    with pytest.raises(DataError, match=r"log\.store is damaged: .*Restore a copy"):
        read_events(made)


def test_events_must_have_the_fingerprint_of_the_run(made: Path) -> None:
    """Swapped ends give a valid store, but another one."""
    edit_array(made, "src", lambda _: None)
    read_events(made)
    edit(made, lambda document: document["generations"][0].update(fingerprint="0" * 16))
    with pytest.raises(DataError, match="fingerprints do not fit"):
        read_events(made)


def test_text_ids_are_checked(tmp_path: Path) -> None:
    two = EventStream.from_columns(["a", "bb"], ["bb", "ccc"], [1, 2], shared_ids=False)
    for name, change in {
        "name_at": lambda x: put(x, 1, 2**30),
        "name_bytes": lambda x: put(x, 0, 0xFF),
        "side": lambda x: put(x, 0, 1),
    }.items():
        store = convert_to_store(two, tmp_path / name).path
        edit_array(store, name, change)
        with pytest.raises(DataError, match="is damaged"):
            read_events(store)


# -------------------- training indexes


def masked_arrays(store: Path) -> dict[str, Any]:
    found = read_events(store)
    assert found.backing is not None
    index = found.backing.masked_index(found.src, found.dst, np.arange(found.n_nodes) == 2)
    return {name: index.arrays[name].tolist() for name in INDEX_ARRAYS} | dict(index.longest)


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("name", ["nbr", "pos", "row_start", "pair_pos"])
def test_a_damaged_training_index_is_built_again(made: Path, name: str, is_signed: bool) -> None:
    expected = masked_arrays(made)
    [folder] = made.glob("masked-*")
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 0x40
    (folder / name).write_bytes(content)
    if is_signed:
        document = json.loads((folder / "index.json").read_text())
        document["arrays"][name]["sha256"] = hashlib.sha256(content).hexdigest()
        (folder / "index.json").write_text(json.dumps(document))
    assert masked_arrays(made) == expected


@pytest.mark.parametrize("name", ["../../secret", "/dev/zero", "nbr"])
def test_a_training_index_names_only_its_own_arrays(made: Path, tmp_path: Path, name: str) -> None:
    expected = masked_arrays(made)
    [folder] = made.glob("masked-*")
    (tmp_path / "secret").write_bytes(bytes(1000))
    document = json.loads((folder / "index.json").read_text())
    document["arrays"][name] = document["arrays"].pop("nbr") | {"dtype": "O"}
    (folder / "index.json").write_text(json.dumps(document))
    assert masked_arrays(made) == expected


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_the_lock_of_the_training_indexes_is_a_file(made: Path, tmp_path: Path, kind: str) -> None:
    lock = made / "masked.lock"
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(tmp_path / "new")
    with pytest.raises(DataError, match=r"masked\.lock is a folder, link, pipe"):
        masked_arrays(made)
    assert not (tmp_path / "new").exists()


def test_the_pairs_of_a_training_index_have_no_masked_node() -> None:
    """As many entries, in order, each an event of its pair: but that event is not in the index."""
    from cordgt.events.backing import IndexData
    from cordgt.history.index_builder import build_index

    src, dst, ties = np.array([0, 0]), np.array([1, 2]), np.array([0, 1])
    masked = np.array([False, False, True])
    index = build_index(src, dst, ties, 3, np.array([True, False]))
    consistency.check_index(index, src, dst, ties, 3, masked)
    wrong = dict(index.arrays) | {"pair_nbr": np.array([2, 0], np.int32), "pair_pos": np.array([1, 0], np.int32)}
    with pytest.raises(ValueError, match="pairs"):
        consistency.check_index(IndexData(wrong, index.longest), src, dst, ties, 3, masked)


# -------------------- records of passed checks


def test_a_store_is_checked_once(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [0]
    check_index = consistency.check_index

    def counted(*arguments: Any) -> None:
        checks[0] += 1
        check_index(*arguments)

    monkeypatch.setattr(consistency, "check_index", counted)
    read_events(made)
    append_to(made, stream(5, 1000))
    read_events(made)
    assert checks[0] == 0, "just written"
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    for _ in range(3):
        read_events(copy)
    assert checks[0] == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")  # cannot be written
    for _ in range(2):
        read_events(copy)
    assert checks[0] == 3


def test_an_earlier_generation_must_have_its_fingerprint(made: Path) -> None:
    append_to(made, stream(5, 1000))
    edit(made, lambda document: document["generations"][0].update(events=59))
    store = open_store(made)
    store.stream()
    with pytest.raises(DataError, match="fingerprints do not fit"):
        store.stream(store.generations[0]["fingerprint"])


def test_records_of_other_users_do_not_count(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    states = open_store(made)._file_states("store")
    assert not states.is_remembered()
    states.remember()
    assert states.is_remembered()
    folder = tmp_path / "cache" / "cordgt" / check_cache.FOLDER
    assert folder.stat().st_mode & 0o77 == 0
    folder.chmod(0o777)
    assert not states.is_remembered()


@pytest.mark.parametrize(("age", "is_kept"), [(5.0, True), (1.0, False), (-60.0, False)])
def test_a_file_system_of_whole_seconds(age: float, is_kept: bool) -> None:
    """Another write within the same second would not change the times of a file."""
    seconds = int(time.time() - age) * 1_000_000_000
    status: Any = SimpleNamespace(st_dev=1, st_ino=1, st_size=1, st_mtime_ns=seconds, st_ctime_ns=seconds)
    states = check_cache.FileStates(f"age {age}", [status])
    states.remember()
    assert states.is_coarse
    assert states.is_remembered() == is_kept


def test_few_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(check_cache, "MAX_RECORDS", 4)
    for k in range(9):
        check_cache.FileStates(str(k), []).remember()
    assert check_cache.FileStates("8", []).is_remembered()
    assert len(list((tmp_path / "cordgt" / check_cache.FOLDER).iterdir())) <= 4


# -------------------- unfinished stores


class Stopped(BaseException):
    pass


def interrupt(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Convert, but stop when all events are staged. Returns the work folder."""

    def stop(*_: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build, "write_events", stop)
        convert_to_store(source, target)
    return target.with_name(f"{target.name}.part")


STATE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "columns": lambda s: s["columns"].update({"../../keep": {"dtype": "<i8", "width": 0, "rows": 0}}),
    "renamed": lambda s: s["columns"].update({"../../keep": s["columns"].pop("t")}),
    "type": lambda s: s["columns"]["t"].update(dtype="O"),
    "rows": lambda s: s["columns"]["src"].update(rows=1),
    "width": lambda s: s["columns"]["src"].update(width=-1),
    "ids": lambda s: s.update(ids=7),
    "no ids": lambda s: s["ids"].clear(),
    "position": lambda s: s.update(position={"x": 1}),
    "flags": lambda s: s.update(text=None),
    "source": lambda s: s.update(source_state={}),
    "key": lambda s: s.pop("is_sorted"),
}


@pytest.mark.parametrize("key", STATE)
def test_a_wrong_state_of_a_conversion_is_discarded(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that it names would be opened and truncated."""
    log, target = tmp_path / "log.csv", tmp_path / "log.store"
    log.write_text("src,dst,time\na,b,1\nb,c,2\nc,a,3\n")
    (tmp_path / "keep.i8").write_text("x" * 100)
    part = interrupt(log, target, monkeypatch)
    state = json.loads((part / "state.json").read_text())
    STATE[key](state)
    (part / "state.json").write_text(json.dumps(state))
    assert convert_to_store(log, target).n_events == 3
    assert (tmp_path / "keep.i8").read_text() == "x" * 100


def test_codes_of_unknown_ids_are_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, target = tmp_path / "log.csv", tmp_path / "log.store"
    log.write_text("src,dst,time\na,b,1\nb,c,2\nc,a,3\n")
    part = interrupt(log, target, monkeypatch)
    np.array([0, 10**9, 2], np.int32).tofile(part / "stage" / "src.i4")
    assert convert_to_store(log, target).array("src").tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", [".", "stage"])
def test_a_linked_work_folder_is_refused(tmp_path: Path, name: str) -> None:
    outside, part = tmp_path / "outside", tmp_path / "log.store.part"
    (outside / "stage").mkdir(parents=True)
    (outside / "stage" / "keep").write_text("x")
    if name == ".":
        part.symlink_to(outside)
    else:
        part.mkdir()
        (part / "stage").symlink_to(outside)
    with pytest.raises(DataError, match="is a link or a file"):
        convert_to_store(stream(), tmp_path / "log.store")
    assert (outside / "stage" / "keep").exists()


# -------------------- durability


def test_folders_are_flushed_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the system must not leave a ``store.json`` without its files, nor lose the rename."""
    synced: list[tuple[str, bool]] = []
    store, sync = tmp_path / "log.store", files.sync_file

    def record(path: Path) -> None:
        synced.append(
            (path.name, (path.parent if path.name.startswith("data-") else path).joinpath(STORE_FILE).exists())
        )
        sync(path)

    monkeypatch.setattr(files, "sync_file", record)
    convert_to_store(stream(), store)
    names = [name for name, _ in synced]
    [data] = [name for name in names if name.startswith("data-")]
    assert (data, False) in synced, "the arrays before store.json"
    assert names.index(data) < names.index(f"{store.name}.part", names.index(data)) < names.index(tmp_path.name)
    synced.clear()
    append_to(store, stream(5, 1000))
    names = [name for name, _ in synced]
    assert any(name.startswith("index-") for name in names)
    assert names[-1] == store.name
