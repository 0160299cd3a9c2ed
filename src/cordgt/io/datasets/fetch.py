"""Fetch a known dataset: download it or take local files, convert it, check it, and put it into the data folder.

All work happens in a temporary folder next to the target, which is renamed at the end: a dataset is there complete and
checked, or not at all. ``source.json`` next to it records its origin and the checksums of the original files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pooch import file_hash

from cordgt.callbacks import Callback, Callbacks, as_callback
from cordgt.errors import DataError, did_you_mean
from cordgt.events.describe import describe
from cordgt.events.stream import EventStream
from cordgt.files import file_lock
from cordgt.io.datasets import gowalla
from cordgt.io.datasets.archives import Archive, is_archive
from cordgt.io.datasets.download import DEADLINE, DownloadError, download
from cordgt.io.datasets.registry import KNOWN_DATASETS, data_folders, describe_missing_labels, find_dataset
from cordgt.io.datasets.sources import SOURCES, list_remote_files
from cordgt.io.datasets.tgb import read_tgb, read_tgb_seq, tgb_edge_list
from cordgt.io.readers import LABELS_NOT_READ, read_events

SOURCE_FILE = "source.json"
DOWNLOADS = ".downloads"  # in the data folder: downloads in progress
JODIE_LABEL = "3"  # position of the labels in JODIE's files, whatever the column's name
FEATURE_SUFFIXES = (".npy", "_node.npy")


@dataclass(frozen=True)
class FetchResult:
    """A dataset in place: its file, whether it was there before, and its statistics."""

    path: Path
    already_present: bool
    statistics: dict[str, Any]
    notes: tuple[str, ...] = ()  # what was left out, and why


def fetch(
    name: str,
    *,
    local: Path | None = None,
    overwrite: bool = False,
    accept_different: bool = False,
    callbacks: Callbacks = None,
) -> FetchResult:
    """Put a known dataset where it is found by name. Do nothing if it is there already.

    Args:
        local: a folder or archive of files to use instead of a download.
        overwrite: replace the dataset that is there.
        accept_different: keep it even if its nodes, links, labels or checksum differ from those expected.

    DataError if it cannot be fetched or is not as published; the dataset that was there before then stays.
    """
    if name not in SOURCES:
        raise DataError(f"'{name}' cannot be fetched.{did_you_mean(name, SOURCES)} Choose from: {', '.join(SOURCES)}.")
    path = find_dataset(name)
    if path is not None and not overwrite:
        stream = read_events(path, name=name)
        notes = (*_label_notes(stream), *_label_warnings(name, stream))
        return FetchResult(path, True, _compute_statistics(name, stream), notes)
    base = data_folders()[0]
    callback = as_callback(callbacks)
    with _lock_downloads(base, name) as downloads:
        _clean_up(base, name)
        if local is None:
            files = _download_files(name, downloads, callback)
        else:
            files = {path: str(path) for path in _find_local_files(name, local)}
        try:
            result = _build(name, base, files, local, callback, accept_different)
        except DataError:
            if SOURCES[name].kind in ("jodie", "tgb"):  # published without a checksum: the file itself may be wrong
                shutil.rmtree(downloads, ignore_errors=True)
            raise
        shutil.rmtree(downloads, ignore_errors=True)
    return result


def _clean_up(base: Path, name: str) -> None:
    """Delete what a killed process left unfinished, and restore the dataset it was replacing."""
    if not (base / name).exists() and (old := base / f".{name}.old").exists():
        os.replace(old, base / name)
    for folder in (base / f".{name}.old", base / f".{name}.part"):
        shutil.rmtree(folder, ignore_errors=True)


# -------------------- original files


def _download_files(name: str, downloads: Path, callbacks: Callback) -> dict[Path, str]:
    """Download the published files, and return their paths with their URLs."""
    files = {}
    deadline = time.monotonic() + DEADLINE
    try:
        for remote in list_remote_files(name):
            path = downloads / remote.name
            download(
                remote.url, path, checksum=remote.checksum, size=remote.size, callbacks=callbacks, deadline=deadline
            )
            files[path] = remote.url
    except DownloadError as error:
        raise DownloadError(
            f"{error} You can also get the files from {SOURCES[name].homepage} yourself and pass them with --from DIR."
        ) from None
    return files


def _find_local_files(name: str, local: Path) -> list[Path]:
    """Return the files of a dataset in a folder, or the archive itself. DataError with what is missing."""
    if not local.exists():
        raise DataError(f"There is no folder {local}.")
    if is_archive(local):
        return [local]
    if not local.is_dir():
        raise DataError(f"{local} is neither a folder nor an archive (.zip, .tar, .tar.gz).")
    source = SOURCES[name]
    if source.kind == "gowalla":
        missing = [file for file in gowalla.FILES if not (local / file).is_file()]
        if missing:
            raise DataError(f"{local} is incomplete for {name}: it lacks {', '.join(missing)}.")
        return [local / file for file in gowalla.FILES]
    candidates = _local_candidates(name, local)
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        names = ", ".join(dict.fromkeys(path.name for path in candidates))
        raise DataError(f"{local} has no file of {name}: looked for {names}. Get them from {source.homepage}.")
    return [path]


def _local_candidates(name: str, local: Path) -> list[Path]:
    """Return where a folder may hold a dataset, best form first: converted, archived, as JODIE published it."""
    source = SOURCES[name]
    names = dict.fromkeys((name, source.published_name))
    folders = [local, *(local / k for k in names), local / "TG_network_datasets" / source.published_name]
    converted = [folder / f"ml_{k}{end}" for k in names for folder in folders for end in (".csv", ".csv.gz")]
    archived = [local / f"{k}.zip" for k in (*names, "TG_network_datasets")]
    plain_names = {"jodie": f"{name}.csv", "tgb-seq": f"{name}.csv", "tgb": tgb_edge_list(source.published_name)}
    plain = [folder / plain_names[source.kind] for folder in folders[:2]] if source.kind in plain_names else []
    return [*converted, *archived, *plain]


@contextmanager
def _lock_downloads(base: Path, name: str) -> Iterator[Path]:
    """Lock a folder for downloads, and remove it if empty. DataError if another process is fetching the dataset."""
    downloads = base / DOWNLOADS / name
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{downloads} cannot be written: {error.strerror or error}.") from None
    with file_lock(downloads, DataError(f"Another process is fetching {name} into {base}. Let it finish.")):
        try:
            yield downloads
        finally:
            for folder in (downloads, downloads.parent):
                with suppress(OSError):  # not empty: partial files, or another dataset's downloads
                    folder.rmdir()


# -------------------- conversion


def _build(
    name: str, base: Path, files: dict[Path, str], local: Path | None, callbacks: Callback, accept_different: bool
) -> FetchResult:
    """Convert and check in a temporary folder, then move it into place. ``files``: each path with its display name."""
    folder = base / f".{name}.part"
    display = _DisplayNames({folder: str(base), **files})
    try:
        folder.mkdir()
        checksums = {path.name: file_hash(str(path)) for path in files}
        if not accept_different:
            _check_unchanged(name, base, checksums)
        conversion = _Conversion(name, folder, display, callbacks, accept_different)
        path, notes = conversion.run(list(files))
        stream = read_events(path, name=name, label=conversion.required_label("label"))
        statistics = _compute_statistics(name, stream)
        if not accept_different:
            _check_published(name, path, stream, statistics)
        notes += [display.apply(note) for note in _label_notes(stream)]
        origin = SOURCES[name].homepage if local is None else str(local.resolve())
        about = {"from": origin, "sha256": checksums} | statistics | ({"notes": notes} if notes else {})
        (folder / SOURCE_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        _move_into_place(folder, base / name)
    except DataError as error:
        raise DataError(display.apply(str(error))) from None
    except OSError as error:  # of a local file too
        place = display.apply(str(error.filename or base))
        raise DataError(f"{place} cannot be read or written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return FetchResult(base / name / path.name, False, statistics, (*notes, *_label_warnings(name, stream)))


class _DisplayNames(dict[Path, str]):
    """Temporary paths, each with the name that messages show for it, since the temporary files are deleted."""

    def apply(self, text: str) -> str:
        """Replace the temporary paths in a message."""
        for path in sorted(self, key=lambda p: len(str(p)), reverse=True):  # a file before its folder
            text = text.replace(str(path), self[path])
        return text


def _move_into_place(folder: Path, target: Path) -> None:
    """Rename ``folder`` to ``target``. If that fails, the dataset that was there stays; see also `_clean_up`."""
    old = target.with_name(f".{target.name}.old")
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(folder, target)
    finally:  # after Ctrl-C too
        if old.exists() and not target.exists():
            os.replace(old, target)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class _Conversion:
    """Writes ``ml_NAME.csv`` and its features into ``folder``. New files get their display names."""

    name: str
    folder: Path
    display: _DisplayNames
    callbacks: Callback
    accept_different: bool

    def run(self, files: Sequence[Path]) -> tuple[Path, list[str]]:
        """Convert the files. Return the path of ``ml_NAME.csv``, and notes on what was left out."""
        self.callbacks.on_stage_start("converting", None)
        first = files[0]
        if SOURCES[self.name].kind == "gowalla":
            return self._filter_checkins(files), []
        if SOURCES[self.name].kind == "tgb" and not first.name.startswith("ml_"):
            return self._convert_tgb(first), []
        if is_archive(first):
            return self._extract_converted(first), []
        if first.name.startswith("ml_"):
            return self._copy_converted(first), []
        if SOURCES[self.name].kind == "tgb-seq":
            stream, split = read_tgb_seq(first, self.name)
            return write_published(stream, self.folder, self.name), [split.note]
        stream = read_events(first, name=self.name, label=self.required_label(JODIE_LABEL))
        notes = [self.display.apply(note) for note in _label_notes(stream)]
        return write_published(stream, self.folder, self.name, unreadable_labels=bool(notes)), notes

    def required_label(self, column: str) -> str | None:
        """Return the label column if labels are required, so that an unreadable one is an error; else None."""
        return column if KNOWN_DATASETS[self.name].has_labels and not self.accept_different else None

    def _filter_checkins(self, files: Sequence[Path]) -> Path:
        source = files[0].parent
        if is_archive(files[0]):
            archive, source = Archive(files[0]), self.folder
            missing = sorted(set(gowalla.FILES).difference(archive.names()))
            if missing:
                raise DataError(f"{files[0]} is incomplete: it has no {', '.join(missing)}.")
            for file in gowalla.FILES:
                self._extract(archive, file, file)
        stream = gowalla.filter_checkins(source, self.name, self.callbacks)
        for file in gowalla.FILES:
            (self.folder / file).unlink(missing_ok=True)
        return write_published(stream, self.folder, self.name)

    def _convert_tgb(self, path: Path) -> Path:
        """Convert the edge list of a TGB dataset, or of its archive."""
        if is_archive(path):
            archive, member = Archive(path), tgb_edge_list(SOURCES[self.name].published_name)
            self._extract(archive, member, member)
            path = self.folder / member
        stream = read_tgb(path, self.name)
        if path.parent == self.folder:
            path.unlink()
        return write_published(stream, self.folder, self.name)

    def _extract_converted(self, path: Path) -> Path:
        """Extract the published layout from an archive, and rename it to NAME."""
        archive, published_name = Archive(path), SOURCES[self.name].published_name
        members = archive.names()
        stem = next((k for k in (f"ml_{published_name}", f"ml_{self.name}") if f"{k}.csv" in members), None)
        if stem is None:
            raise DataError(f"{path} has no file of {self.name}: looked for ml_{published_name}.csv in it.")
        for suffix in (".csv", *FEATURE_SUFFIXES):
            if f"{stem}{suffix}" in members:
                self._extract(archive, f"{stem}{suffix}", f"ml_{self.name}{suffix}")
        return self.folder / f"ml_{self.name}.csv"

    def _extract(self, archive: Archive, member: str, name: str) -> None:
        target = self.folder / name
        self.display[target] = f"{member} in {self.display[archive.path]}"
        archive.extract(member, target)

    def _copy_converted(self, path: Path) -> Path:
        """Copy a file in the published layout and the features next to it, and rename them to NAME."""
        stem, _, compression = path.name.partition(".csv")
        target = self.folder / f"ml_{self.name}.csv{compression}"
        features = {self.folder / f"ml_{self.name}{k}": path.with_name(f"{stem}{k}") for k in FEATURE_SUFFIXES}
        for copy, original in {target: path, **features}.items():
            if copy == target or original.is_file():
                self.display[copy] = str(original)
                shutil.copyfile(original, copy)
        return target


def write_published(stream: EventStream, folder: Path, name: str, *, unreadable_labels: bool = False) -> Path:
    """Write a stream in the published layout: ``,u,i,ts,label,idx``.

    Users count from 1, items follow. Within each side the numbers follow the original ids, as in other published
    files. With shared ids, all nodes count from 1 in order of first appearance. Features go to ``ml_NAME.npy``, row 0
    unused. A stream without labels gets zeros, as others publish it; with ``unreadable_labels`` it gets empty labels,
    because a zero would look like a label.
    """
    if stream.ids.shared:
        u, i, n_src = np.asarray(stream.src), np.asarray(stream.dst), 0
    else:
        u, n_src = _rank_ids(stream, stream.src)
        i, _ = _rank_ids(stream, stream.dst)
    rows = np.arange(stream.n_events)
    label = stream.label
    if label is None:
        label = pa.nulls(stream.n_events, pa.int64()) if unreadable_labels else np.zeros(stream.n_events, np.int64)
    columns = {"": rows, "u": u + 1, "i": i + 1 + n_src, "ts": stream.t, "label": label, "idx": rows + 1}
    path = folder / f"ml_{name}.csv"
    pyarrow.csv.write_csv(
        pa.table(columns), path, pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
    )
    if stream.edge_x is not None:
        np.save(folder / f"ml_{name}.npy", np.concatenate([np.zeros_like(stream.edge_x[:1]), stream.edge_x]))
    return path


def _rank_ids(stream: EventStream, column: np.ndarray) -> tuple[np.ndarray, int]:
    """Return (E,) ranks of the nodes' ids among the ids of their side, and the number of nodes on that side."""
    nodes, inverse = np.unique(column, return_inverse=True)
    names = np.array(stream.ids.decode(nodes).to_pylist())
    rank = np.empty(len(nodes), np.int64)
    rank[np.argsort(names, kind="stable")] = np.arange(len(nodes))
    return rank[inverse], len(nodes)


# -------------------- checks


def _label_notes(stream: EventStream) -> list[str]:
    """Return the notes of `read_events` on unreadable labels."""
    return [note for note in stream.notes if LABELS_NOT_READ in note]


def _label_warnings(name: str, stream: EventStream) -> list[str]:
    """Return a warning if an accepted dataset lacks the labels it is published with."""
    missing = describe_missing_labels(name, stream)
    return [f"{name}: {missing}. Node classification is not possible."] if missing else []


def _compute_statistics(name: str, stream: EventStream) -> dict[str, Any]:
    """Return the statistics of a dataset and the published ones.

    Intensity is not checked: the paper's value for LastFM does not fit its own data.
    """
    found, known = describe(stream), KNOWN_DATASETS[name]
    return {
        "name": name,
        "nodes": found["nodes"],
        "links": found["events"],
        "link_attributes": found["edge_features"],
        "intensity": found["intensity"],
        "published": {key: getattr(known, key) for key in ("nodes", "links", "link_attributes", "intensity")},
    }


def _check_published(name: str, path: Path, stream: EventStream, statistics: dict[str, Any]) -> None:
    """Raise DataError if features are missing, or if nodes, links or labels differ from the published dataset."""
    n_features, published = KNOWN_DATASETS[name].link_attributes, statistics["published"]
    if n_features and not path.with_name(f"ml_{name}.npy").exists():
        raise DataError(
            f"These files of {name} are incomplete: the {n_features} features of the events are missing "
            f"(ml_{SOURCES[name].published_name}.npy). --accept-different takes the events alone."
        )
    counts = [(statistics[key], published[key], key) for key in ("nodes", "links")]
    wrong = [f"{here:,} {key} (published: {there:,})" for here, there, key in counts if here != there]
    missing = describe_missing_labels(name, stream)
    wrong += [missing] if missing else []
    if wrong:
        raise DataError(
            f"This is not {name} as published: {', '.join(wrong)}. It was not put in place. --accept-different keeps "
            "it, with a note whenever it is read."
        )


def _check_unchanged(name: str, base: Path, checksums: dict[str, str]) -> None:
    """Raise DataError if an original file differs from the one of that name fetched before (trust on first use)."""
    try:
        before = json.loads((base / name / SOURCE_FILE).read_text(encoding="utf-8"))["sha256"]
        changed = [k for k, v in checksums.items() if k in before and before[k] != v]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if changed:
        file = changed[0]
        raise DataError(
            f"{file} has changed since {name} was fetched before: its SHA-256 is {checksums[file]}, and was "
            f"{before[file]}. The dataset in place stays. --accept-different takes the new file."
        )
