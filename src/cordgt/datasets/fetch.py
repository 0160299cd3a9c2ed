"""Datasets by name: fetched or taken from a folder, converted, checked, and put where `by_name` finds them.

Everything is made in a folder of its own beside the target and renamed at the end: a dataset is there whole and
checked, or not at all. ``source.json`` beside it says where it is from and what its files' checksums were.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cordgt.datasets import gowalla
from cordgt.datasets.archives import Archive, is_archive
from cordgt.datasets.by_name import KNOWN, data_folders, find, missing_labels
from cordgt.datasets.download import Refused, Unreachable, checksums, download
from cordgt.datasets.sources import DGB_NAMES, SOURCES, Source, remotes
from cordgt.errors import DataError, nearest
from cordgt.events.describe import describe
from cordgt.events.stream import EventStream
from cordgt.files import exclusive
from cordgt.reading.readers import NOT_LABELS, read_events

ABOUT = "source.json"
DOWNLOADS = ".downloads"  # in the data folder: what is on its way
JODIE_LABEL = "3"  # where JODIE's files have their labels, whatever the column is called

Progress = Callable[[str, int, int | None], None]  # what, how much of it so far, and in all where known


@dataclass(frozen=True)
class Result:
    """A dataset that is there: its file, whether it was there before, and what it is like."""

    path: Path
    was_here: bool
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()  # what was left out, and why


def fetch(
    name: str,
    *,
    given: Path | None = None,
    again: bool = False,
    accept_different: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Put the dataset of that name where it is found by name; nothing is done where it is there already.

    Args:
        given: a folder or archive with files that were fetched by hand, in place of a download.
        again: replace what is there.
        accept_different: keep it though its numbers of nodes or links, or its checksum, are not those expected.

    DataError where it cannot be had or is not what was published; then what was there before is as it was.
    """
    if name not in SOURCES:
        raise DataError(f"'{name}' cannot be fetched.{nearest(name, SOURCES)} These can: {', '.join(SOURCES)}.")
    there = find(name)
    if there is not None and not again:
        stream = read_events(there, name=name)
        return Result(there, True, _facts(name, stream), (*_left_out(stream), *_warned(name, stream)))
    base = data_folders()[0]
    tell = progress or _silent
    with _alone(base, name) as downloads:
        _sweep(base, name)
        files = _received(name, downloads, tell) if given is None else {p: str(p) for p in _given(name, given)}
        try:
            made = _make(name, base, files, given, tell, accept_different)
        except DataError:
            if SOURCES[name].kind == "jodie":  # published without a checksum: the file itself may be what is wrong
                _empty(downloads)
            raise
        _empty(downloads)
    return made


def _empty(downloads: Path) -> None:
    """Remove what was received; the folder itself is locked, and goes at the end."""
    for file in downloads.iterdir():
        file.unlink(missing_ok=True)


def _sweep(base: Path, name: str) -> None:
    """Remove what a process that was killed left half made, and put back what it had taken out of the way."""
    for old in base.glob(f".{name}.*.old"):
        if (old / "old").exists() and not (base / name).exists():
            os.replace(old / "old", base / name)
        shutil.rmtree(old, ignore_errors=True)
    for part in base.glob(f".{name}.*.part"):
        shutil.rmtree(part, ignore_errors=True)


# -------------------- getting the files


def _received(name: str, downloads: Path, progress: Progress) -> dict[Path, str]:
    """The published files, downloaded, each with its address."""
    found = {}
    try:
        for remote in remotes(name):
            target = downloads / remote.name
            made = download(remote.url, target, remote.expected, partial(progress, remote.name))
            found[made.path] = remote.url
    except (Unreachable, Refused) as error:
        place = SOURCES[name].place
        raise type(error)(f"{error} Files fetched by hand from {place} are taken with --from DIR.") from None
    return found


def _given(name: str, given: Path) -> list[Path]:
    """The files of a dataset among those in a folder, or in an archive. DataError with what is missing."""
    if not given.exists():
        raise DataError(f"There is no folder {given}.")
    if is_archive(given):
        return [given]
    if not given.is_dir():
        raise DataError(f"{given} is neither a folder nor an archive (.zip, .tar, .tar.gz).")
    source = SOURCES[name]
    if source.kind == "gowalla":
        missing = [file for file in gowalla.FILES if not (given / file).is_file()]
        if missing:
            has = ", ".join(file for file in gowalla.FILES if file not in missing) or "none of its files"
            raise DataError(f"{given} is incomplete for {name}: it has {has}, but not {', '.join(missing)}.")
        return [given / file for file in gowalla.FILES]
    looked = _looked_for(name, given)
    found = next((path for path in looked if path.is_file()), None)
    if found is None:
        names = ", ".join(dict.fromkeys(path.name for path in looked))
        raise DataError(f"{given} has no file of {name}: looked for {names}. They come from {source.place}.")
    return [found]


def _looked_for(name: str, given: Path) -> list[Path]:
    """Where a folder may hold a dataset, the best form first: ready, packed, as JODIE published it."""
    called = dict.fromkeys((name, DGB_NAMES[name]))
    folders = [given, *(given / k for k in called), given / "TG_network_datasets" / DGB_NAMES[name]]
    ready = [folder / f"ml_{k}{end}" for k in called for folder in folders for end in (".csv", ".csv.gz")]
    packed = [given / f"{k}.zip" for k in (*called, "TG_network_datasets")]
    plain = [folder / f"{name}.csv" for folder in folders[:2]] if SOURCES[name].kind == "jodie" else []
    return [*ready, *packed, *plain]


@contextmanager
def _alone(base: Path, name: str) -> Iterator[Path]:
    """A folder for downloads of this dataset, kept until they are whole; DataError where another process fetches it."""
    downloads = base / DOWNLOADS / name
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{downloads} cannot be written: {error.strerror or error}.") from None
    with exclusive(downloads, DataError(f"Another process is fetching {name} into {base}. Let it finish.")):
        try:
            yield downloads
        finally:
            for folder in (downloads, downloads.parent):
                with suppress(OSError):  # another dataset's downloads may have come meanwhile
                    folder.rmdir()


# -------------------- making the dataset


def _make(
    name: str, base: Path, files: dict[Path, str], given: Path | None, progress: Progress, accept_different: bool
) -> Result:
    """Convert and check in a folder aside, then put it in its place. ``files``: each with its name for people."""
    aside = base / f".{name}.{secrets.token_hex(4)}.part"
    known_as = {aside: str(base), **files}
    try:
        with _in_known_names(known_as):
            aside.mkdir()
            sums = {path.name: checksums(path)["sha256"] for path in files}
            _check_before(name, base, sums, accept_different)
            written, notes = _convert(name, aside, known_as, list(files), progress, accept_different)
            _check_complete(name, written, accept_different)
            stream = read_events(written, name=name, label=_label(name, "label", accept_different))
            facts = _facts(name, stream)
            _check_counts(name, facts, accept_different)
            _check_labels(name, stream, accept_different)
        notes += tuple(_renamed(note, known_as) for note in _left_out(stream))
        told = {"from": str(SOURCES[name].place if given is None else given.resolve()), "sha256": sums} | facts
        told |= {"notes": notes} if notes else {}
        (aside / ABOUT).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        _put(aside, base / name)
    except OSError as error:
        # a file given by hand may be what cannot be read
        place = _renamed(str(error.filename or base), known_as)
        raise DataError(f"{place} cannot be read or written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Result(base / name / written.name, False, facts, (*notes, *_warned(name, stream)))


@contextmanager
def _in_known_names(known_as: dict[Path, str]) -> Iterator[None]:
    """Errors that name files on their way, which are gone when they are read, name them as people know them."""
    try:
        yield
    except DataError as error:
        raise DataError(_renamed(str(error), known_as)) from None


def _renamed(words: str, known_as: dict[Path, str]) -> str:
    for path in sorted(known_as, key=lambda p: len(str(p)), reverse=True):  # a file before the folder it is in
        words = words.replace(str(path), known_as[path])
    return words


def _put(aside: Path, target: Path) -> None:
    """Take the place of what is there, which stays until the new one is whole."""
    if not target.exists():
        os.replace(aside, target)
        return
    old = target.parent / f".{target.name}.{secrets.token_hex(4)}.old"
    old.mkdir()
    os.replace(target, old / "old")
    try:
        os.replace(aside, target)
    except BaseException:  # Ctrl-C too
        if not target.exists():
            os.replace(old / "old", target)
        raise
    finally:
        if target.exists():  # else what was there is still in ``old``, and the next call puts it back
            shutil.rmtree(old, ignore_errors=True)


def _convert(
    name: str,
    folder: Path,
    known_as: dict[Path, str],
    files: Sequence[Path],
    progress: Progress,
    accept_different: bool,
) -> tuple[Path, tuple[str, ...]]:
    """``ml_NAME.csv`` and what belongs to it in ``folder``, from the published files; and what was left out.

    Whatever is made on the way gets its place in ``known_as``.
    """
    source = SOURCES[name]
    progress("converting", 0, None)
    if source.kind == "gowalla" and is_archive(files[0]):
        files = _unpacked(files[0], gowalla.FILES, folder, known_as)
    if source.kind == "gowalla":
        stream = gowalla.cut_checkins(files[0].parent, name, lambda n: progress("reading check-ins", n, None))
        for path in files:
            if path.parent == folder:
                path.unlink()
        return write_published(stream, folder, name), ()
    if is_archive(files[0]):
        return _from_archive(name, source, files[0], folder, known_as), ()
    if files[0].name.startswith("ml_"):
        return _copied(name, files[0], folder, known_as), ()
    stream = read_events(files[0], name=name, label=_label(name, JODIE_LABEL, accept_different))
    notes = tuple(_renamed(note, known_as) for note in _left_out(stream))
    return write_published(stream, folder, name, labels_lost=bool(notes)), notes


def _from_archive(name: str, source: Source, path: Path, folder: Path, known_as: dict[Path, str]) -> Path:
    """The published layout out of an archive, under our name."""
    archive = Archive(path)
    inside = archive.names()
    stem = next((k for k in (f"ml_{source.called}", f"ml_{name}") if f"{k}.csv" in inside), None)
    if stem is None:
        raise DataError(f"{path} has no file of {name}: looked for ml_{source.called}.csv in it.")
    for ending in (".csv", ".npy", "_node.npy"):
        if f"{stem}{ending}" in inside:
            target = folder / f"ml_{name}{ending}"
            known_as[target] = f"{stem}{ending} in {known_as[path]}"
            archive.take(f"{stem}{ending}", target)
    return folder / f"ml_{name}.csv"


def _unpacked(path: Path, names: Sequence[str], folder: Path, known_as: dict[Path, str]) -> list[Path]:
    archive = Archive(path)
    inside = set(archive.names())
    missing = [k for k in names if k not in inside]
    if missing:
        raise DataError(f"{path} is incomplete: it has no {', '.join(missing)}.")
    for k in names:
        known_as[folder / k] = f"{k} in {known_as[path]}"
        archive.take(k, folder / k)
    return [folder / k for k in names]


def _copied(name: str, path: Path, folder: Path, known_as: dict[Path, str]) -> Path:
    """A file in the published layout and the features beside it, under our name."""
    stem, packed = path.name.partition(".csv")[0], path.name.endswith(".gz")
    target = folder / f"ml_{name}.csv{'.gz' if packed else ''}"
    beside = {folder / f"ml_{name}{ending}": path.with_name(f"{stem}{ending}") for ending in (".npy", "_node.npy")}
    for copy, original in {target: path, **beside}.items():
        if copy == target or original.is_file():
            known_as[copy] = str(original)
            shutil.copyfile(original, copy)
    return target


def write_published(stream: EventStream, folder: Path, name: str, *, labels_lost: bool = False) -> Path:
    """A stream of users and items in the published layout: ``,u,i,ts,label,idx``, users from 1, items after them.

    Within each side the numbers follow the original ids, as in the files that others publish. Features go to
    ``ml_NAME.npy``, row 0 unused. Where there are no labels they are 0, as others have it; with ``labels_lost`` there
    were some that could not be read, and they are left empty: a 0 would look like one.
    """
    u, n_src = _ranked(stream, stream.src)
    i, _ = _ranked(stream, stream.dst)
    rows = np.arange(stream.n_events)
    none = pa.nulls(stream.n_events, pa.int64()) if labels_lost else np.zeros(stream.n_events, np.int64)
    label = none if stream.label is None else stream.label
    columns = {"": rows, "u": u + 1, "i": i + 1 + n_src, "ts": stream.t, "label": label, "idx": rows + 1}
    path = folder / f"ml_{name}.csv"
    pyarrow.csv.write_csv(
        pa.table(columns), path, pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
    )
    if stream.edge_x is not None:
        np.save(folder / f"ml_{name}.npy", np.concatenate([np.zeros_like(stream.edge_x[:1]), stream.edge_x]))
    return path


def _ranked(stream: EventStream, column: np.ndarray) -> tuple[np.ndarray, int]:
    """Each node of one side by the rank of its id among those of that side, and how many there are."""
    nodes, which = np.unique(column, return_inverse=True)
    names = np.array(stream.ids.take(nodes).to_pylist())
    rank = np.empty(len(nodes), np.int64)
    rank[np.argsort(names, kind="stable")] = np.arange(len(nodes))
    return rank[which], len(nodes)


# -------------------- checking it


def _label(name: str, column: str, accept_different: bool) -> str | None:
    """The column to insist on, so that a label that cannot be read is an error with its line; None: not needed."""
    return column if KNOWN[name].labelled and not accept_different else None


def _left_out(stream: EventStream) -> list[str]:
    """What the reader says of labels that it did not take."""
    return [note for note in stream.notes if NOT_LABELS in note]


def _warned(name: str, stream: EventStream) -> list[str]:
    """What is wrong with the labels of a dataset that should have some, though it was accepted."""
    missing = missing_labels(name, stream)
    return [f"{name}: {missing}. Nodes cannot be classified by it."] if missing else []


def _check_labels(name: str, stream: EventStream, accept_different: bool) -> None:
    missing = missing_labels(name, stream)
    if missing and not accept_different:
        raise DataError(
            f"This is not {name} as published: {missing}. It was not put in place. --accept-different keeps it."
        )


def _facts(name: str, stream: EventStream) -> dict[str, Any]:
    """What is there beside what is published. Intensity is only shown: the paper's for LastFM does not fit its data."""
    found, known = describe(stream), KNOWN[name]
    return {
        "name": name,
        "nodes": found["nodes"],
        "links": found["events"],
        "link_attributes": found["edge_features"],
        "intensity": found["intensity"],
        "published": {
            "nodes": known.nodes,
            "links": known.links,
            "link_attributes": known.link_attributes,
            "intensity": known.intensity,
        },
    }


def _check_complete(name: str, written: Path, accept_different: bool) -> None:
    """DataError where the features that belong to a dataset are not beside its events."""
    features = written.with_name(f"ml_{name}.npy")
    if KNOWN[name].link_attributes and not features.exists() and not accept_different:
        n = KNOWN[name].link_attributes
        raise DataError(
            f"These files of {name} are incomplete: there are events, but not their {n} features "
            f"(ml_{SOURCES[name].called}.npy beside them). --accept-different takes the events alone."
        )


def _check_counts(name: str, facts: dict[str, Any], accept_different: bool) -> None:
    there = facts["published"]
    wrong = [f"{facts[k]:,} {k} ({there[k]:,} are published)" for k in ("nodes", "links") if facts[k] != there[k]]
    if wrong and not accept_different:
        raise DataError(
            f"This is not {name} as published: it has {' and '.join(wrong)}. It was not put in place. "
            "--accept-different keeps it, and it is said to differ whenever it is read."
        )


def _check_before(name: str, base: Path, sums: dict[str, str], accept_different: bool) -> None:
    """Where files of the same name were fetched before, they must be the same: trusted on first use."""
    try:
        before = json.loads((base / name / ABOUT).read_text(encoding="utf-8"))["sha256"]
        changed = [k for k, v in sums.items() if k in before and before[k] != v]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if changed and not accept_different:
        raise DataError(
            f"{changed[0]} is not the file it was when {name} was fetched before: its SHA-256 is {sums[changed[0]]}, "
            f"and was {before[changed[0]]}. What is there stays. --accept-different takes the new one."
        )


def _silent(what: str, have: int, total: int | None) -> None:
    """Tells nobody."""
