"""Fuzz targets: each makes the k-th input of a seed, tries it, and returns the outcome."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from cordgt.errors import CordgtError, DataError, RunError, SettingError
from cordgt.events.export import export_stream
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.inference.run import Run
from cordgt.io.column_names import NODE_NAMES, SRC_NAMES, match_columns
from cordgt.io.column_roles import ColumnOptions, assign_roles, open_event_table
from cordgt.io.node_features import join_node_features
from cordgt.io.open_table import TextReadOptions, open_table
from cordgt.io.readers import read_events, read_ids, read_pairs
from cordgt.io.tables import TextTable
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import from_toml, make_settings, parse_toml

from . import seeds
from .mutations import EXTREMES, NAMES, mutate_binary, mutate_text, typed_table
from .slow_reader import compare_events, compare_ids

MAX_MESSAGE = 3000  # characters; a message must not quote a whole file
MAX_GROWTH = 512 << 20  # bytes of memory that one small input may take


@dataclass(frozen=True)
class Outcome:
    """The outcome of an input: its kind, and for a bug the place and the message."""

    kind: str
    where: str = ""
    detail: str = ""

    @property
    def is_bug(self) -> bool:
        return self.kind.startswith("BUG")


class Hang(BaseException):
    """Raised by the alarm. Not an Exception, so that no handler swallows it."""


class Misread(Exception):
    """The reader returned something that is not in the file."""


# -------------------- one attempt


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_attempt(attempt: Callable[[], str], seconds: float) -> Outcome:
    """Run an attempt, which returns how the input was read, and classify its errors as refusals or bugs."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with alarm(seconds):
            kind = attempt()
    except CordgtError as error:
        if len(str(error)) > MAX_MESSAGE:
            return Outcome("BUG: endless message", _place(error), str(error)[:300])
        known = next((k for k in (DataError, RunError, SettingError) if isinstance(error, k)), CordgtError)
        return Outcome(f"refused: {known.__name__}")
    except Hang as error:
        return Outcome("BUG: hang", _place(error))
    except Misread as error:
        return Outcome("BUG: silent misreading", "", str(error)[:600])
    except MemoryError as error:
        return Outcome("BUG: memory", _place(error), str(error)[:300])
    except BaseException as error:  # a bug; pyo3's panics are not Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Outcome(f"BUG: {type(error).__name__}", _place(error), str(error)[:300])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MAX_GROWTH:
        return Outcome("BUG: memory", "", f"{grown >> 20} MiB more")
    return Outcome(kind)


def _place(error: BaseException) -> str:
    """Return the innermost function of this package in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}cordgt{os.sep}" in f.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}"


# -------------------- readers


@dataclass
class Readers:
    """Files and tables of events, pairs, ids and node features."""

    folder: Path
    real: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        events = [*seeds.EVENTS.values(), *self.real.values()]
        self.texts = {
            "events": events,
            "pairs": [*seeds.PAIRS.values(), *seeds.EVENTS.values()],
            "ids": list(seeds.IDS.values()),
            "nodes": list(seeds.NODE_FEATURES.values()),
        }
        self.pool = [k for texts in self.texts.values() for k in texts]
        self.parquet = list(seeds.parquet_events().values())
        self.npy = [seeds.npy(np.ones((11, 2))), seeds.npy(np.arange(12, dtype=np.float32).reshape(6, 2))]
        self.streams = [
            EventStream.from_columns([7, 8, 7], [8, 9, 9], [1, 2, 3]),
            EventStream.from_columns([7, 9], [8, 9], [1, 2], shared_ids=False),
            EventStream.from_columns(["alice", "bob"], ["bob", "eve"], [1, 2]),
        ]

    def prepare(self, rng: Random) -> Callable[[], str]:
        """Write one input, and return the attempt to read it."""
        what = rng.choices(["events", "pairs", "ids", "nodes", "beside"], [12, 3, 3, 4, 2])[0]
        form = rng.choices(["text", "parquet", "typed", "npy"], [16, 2, 2, 1])[0]
        if what == "beside":
            return self._prepare_published(rng)
        if form == "typed":
            table = typed_table(rng)
            data = _parquet_or_none(table)
            if data is None or rng.random() < 0.4:  # in memory; always, if Parquet cannot hold it
                return lambda: _TRY[what](rng, table, None, self)
        elif form == "npy" and what == "nodes":
            data = mutate_binary(rng, rng.choice(self.npy), self.npy)
        elif form == "parquet":
            data = mutate_binary(rng, rng.choice(self.parquet), self.parquet)
        else:
            data = mutate_text(rng, rng.choice(self.texts[what]), self.pool)
        path = self.folder / rng.choice(["input", "input.csv", "input.csv.gz", "ml_input.csv"])
        path.write_bytes(data)
        return lambda: _TRY[what](rng, path, data, self)

    def _prepare_published(self, rng: Random) -> Callable[[], str]:
        """Write the published layout and the numpy files beside it."""
        path = self.folder / "ml_beside.csv"
        data = seeds.EVENTS["ml"] if rng.random() < 0.5 else mutate_text(rng, seeds.EVENTS["ml"], self.pool)
        path.write_bytes(data)
        for ending in (".npy", "_node.npy"):
            path.with_name(f"ml_beside{ending}").write_bytes(
                rng.choice(self.npy) if rng.random() < 0.4 else mutate_binary(rng, rng.choice(self.npy), self.pool)
            )
        return lambda: _try_events(rng, path, data, self, bare=True)


def _parquet_or_none(table: Any) -> bytes | None:
    try:
        return seeds.parquet(table)
    except (pa.ArrowException, ValueError):
        return None


def _some_column(rng: Random) -> Any:
    return rng.choice([None, None, None, 0, 1, 2, 9, "²", *(k.decode("utf-8", "replace") for k in NAMES + EXTREMES)])


def _options(rng: Random) -> dict[str, Any]:
    """Column options; mostly none."""
    if rng.random() < 0.75:
        return {}
    found = {role: _some_column(rng) for role in ("src", "dst", "time", "label") if rng.random() < 0.3}
    if rng.random() < 0.3:
        found["features"] = rng.choice(["rest", "none", "3-4", "0-99", "3", "x,y", "9" * 5000 + "-3", ["x", 3]])
    return found


def _text_table(source: Any, data: bytes | None, opened: Callable[[], Any]) -> TextTable | None:
    """Return the table if it is text, which the slow reader can read again."""
    table = None if data is None else opened()
    return table if isinstance(table, TextTable) else None


def _try_events(rng: Random, source: Any, data: bytes | None, own: Readers, bare: bool = False) -> str:
    options = {} if bare else _options(rng)
    given = {"ids": rng.choice(["auto", "shared", "separate"])} if rng.random() < 0.1 else {}
    if rng.random() < 0.1:
        with suppress(CordgtError):
            read_events(source, **options, **given, skip_bad_rows=True)
    stream = read_events(source, **options, **given)
    column_options = ColumnOptions(**options)
    table = _text_table(source, data, lambda: open_event_table(source, column_options))
    if table is not None and data is not None:
        wrong = compare_events(data, table, assign_roles(table, column_options), stream)
        if wrong:
            raise Misread(wrong)
    if rng.random() < 0.2:
        skipping = read_events(source, **options, **given, skip_bad_rows=True)
        if skipping.n_events != stream.n_events or skipping.notes != stream.notes:
            raise Misread("rows were skipped though all can be read")
    _check_use(rng, stream, own)
    return "read" if table is None else "read and compared"


def _check_use(rng: Random, stream: EventStream, own: Readers) -> None:
    """Check that a stream has valid times, and can be written and read back."""
    if (stream.elapsed < 0).any() or not np.isfinite(stream.elapsed).all():
        raise Misread("an elapsed time is negative or not finite")
    if rng.random() < 0.1:
        ending = rng.choice([".csv", ".parquet"])
        path = export_stream(stream, own.folder / f"again{ending}")[0]
        again = read_events(path)
        same = again.n_events == stream.n_events and np.array_equal(again.t, stream.t)
        ids = [[str(k) for k in one.ids.decode(one.src).to_pylist()] for one in (stream, again)]
        if not same or ids[0] != ids[1]:
            raise Misread(f"written as {ending} and read again, {stream.t}, {ids[0]} is {again.t}, {ids[1]}")


def _try_pairs(rng: Random, source: Any, data: bytes | None, own: Readers) -> str:
    options = {k: v for k, v in _options(rng).items() if k in ("src", "dst", "time")}
    need_time = rng.random() < 0.3
    axis = rng.choice([None, TimeAxis("number"), TimeAxis("date")])
    src, dst, when = read_pairs(source, **options, need_time=need_time, axis=axis)
    if when is not None and len(when) != len(src):
        raise Misread(f"{len(src)} pairs, {len(when)} times")
    column_options = ColumnOptions(**options)
    table = _text_table(
        source, data, lambda: open_event_table(source, column_options, need_time=need_time, allow_comments=False)
    )
    if table is not None and data is not None:
        roles = assign_roles(table, column_options, need_time=need_time)
        wrong = compare_ids(data, table, {roles.src: src, roles.dst: dst})
        if wrong:
            raise Misread(wrong)
    own.streams[2].ids.encode(src)
    return "read" if table is None else "read and compared"


def _try_ids(rng: Random, source: Any, data: bytes | None, own: Readers) -> str:
    column = _some_column(rng) if rng.random() < 0.2 else None
    ids = read_ids(source, column)
    own.streams[0].ids.encode(ids)
    if data is None or column is not None or data[:4] == b"PAR1":
        return "read"
    # Compare only files with one field per row.
    read_options: dict[str, Any] = {
        "content": "Ids",
        "min_columns": 2,
        "allow_whitespace": False,
        "allow_comments": False,
    }
    table = open_table(source, TextReadOptions(is_header=lambda _: False, **read_options))
    if not isinstance(table, TextTable) or table.n_columns != 1:
        return "read"
    first = open_table(source, TextReadOptions(is_header=lambda _: True, **read_options)).header
    wrong = "" if match_columns(first or (), NODE_NAMES | SRC_NAMES) else compare_ids(data, table, {0: ids})
    if wrong:
        raise Misread(wrong)
    return "read and compared"


def _try_nodes(rng: Random, source: Any, data: bytes | None, own: Readers) -> str:
    stream = rng.choice(own.streams)
    joined = join_node_features(stream, source)
    if joined.node_x is not None and not np.isfinite(joined.node_x).all():
        raise Misread("a node feature is not finite")
    return "read"


_TRY: dict[str, Callable[..., str]] = {
    "events": _try_events,
    "pairs": _try_pairs,
    "ids": _try_ids,
    "nodes": _try_nodes,
}

# -------------------- runs


@dataclass
class Runs:
    """Run folders with one or two files damaged or swapped."""

    folder: Path

    def __post_init__(self) -> None:
        self.bases = seeds.run_folders(self.folder / "bases")
        self.files = [{p.name: p.read_bytes() for p in sorted(base.iterdir())} for base in self.bases]
        self.originals = [Run.load(base, "cpu") for base in self.bases]
        self.pools = {name: [files[name] for files in self.files] for name in self.files[0]}
        names = ("model.safetensors", "state.safetensors")
        self.tensors = [{name: RunFolder(base).read_tensors(name)[0] for name in names} for base in self.bases]
        self.work = self.folder / "damaged"
        self.work.mkdir()

    def prepare(self, rng: Random) -> Callable[[], str]:
        which = rng.randrange(len(self.bases))
        files = dict(self.files[which])
        names = [name for name in files if name != "history.jsonl"]
        changed = rng.sample(names, rng.choice([1, 1, 1, 2]))
        for name in changed:
            files[name] = self._damaged(rng, name, files)
        for name, data in files.items():
            (self.work / name).write_bytes(data)
        return lambda: self._load(rng, which, changed, files)

    def _damaged(self, rng: Random, name: str, files: dict[str, bytes]) -> bytes:
        if rng.random() < 0.1:  # another file of this run, or this file of another
            return rng.choice([*files.values(), *self.pools[name]])
        if name.endswith((".toml", ".json")):
            deep = rng.choice([b"[" * 100_000, b'{"a":' * 50_000, b"x = " + b"[" * 50_000, b"seed = 0x" + b"f" * 9000])
            if rng.random() < 0.02:
                return rng.choice([deep, files[name] + deep, deep + files[name]])
            return mutate_text(rng, files[name], self.pools[name])
        if name.endswith(".parquet") and rng.random() < 0.15:
            return _parquet_or_none(_own_table(rng, typed_table(rng))) or b""
        return mutate_binary(rng, files[name], self.pools[name])

    def _load(self, rng: Random, which: int, changed: list[str], files: dict[str, bytes]) -> str:
        original, same = self.originals[which], True
        folder = RunFolder(self.work)
        for name in ("model.safetensors", "state.safetensors"):
            tensors, about = folder.read_tensors(name)
            before = self.tensors[which][name]
            same &= tensors.keys() == before.keys() and isinstance(about, dict)
            same &= all(bool(tensors[k].equal(before[k])) for k in before if k in tensors)
        folder.read_config()
        if rng.random() < 0.3:
            EventStream.load(self.work)
        run = Run.load(self.work, "cpu")
        same &= run.settings == original.settings and run.metrics == original.metrics
        for a, b in ((run.stream, original.stream), (original.stream, run.stream)):
            same &= all(_same(getattr(a, k), getattr(b, k)) for k in ("src", "dst", "t", "label", "edge_x", "node_x"))
            same &= a.ids.names.equals(b.ids.names) and a.notes == b.notes and a.time == b.time
        if rng.random() < 0.01:
            run._load_model(run.weights_file)
        if not same:
            raise Misread(f"another run is read after changes of {', '.join(changed)}")
        return "read, as it was"


def _own_table(rng: Random, table: Any) -> Any:
    names = rng.choice([["src", "dst", "t"], ["id", "side", "features"]])
    names += [f"c{k}" for k in range(table.num_columns)]
    about = {"cordgt_stream": "1", "name": "x", "time": "number", "notes": rng.choice(["[]", "5", "{", "[" * 99999])}
    return table.rename_columns(names[: table.num_columns]).replace_schema_metadata(about)


def _same(a: Any, b: Any) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


# -------------------- settings


@dataclass
class SettingsFiles:
    """Configuration files and keys from the command line."""

    def __post_init__(self) -> None:
        self.pool = [
            make_settings("cordgt", {}).to_toml().encode(),
            b'model = "edgebank"\nseed = 3\nepochs = 4\n',
            b"[training]\nlr = 1e-3\n[settings]\nfanout = [32, 1]\nmask = true\n",
        ]

    def prepare(self, rng: Random) -> Callable[[], str]:
        if rng.random() < 0.2:
            return lambda: self._keys(rng)
        data = mutate_text(rng, rng.choice(self.pool), self.pool)
        if rng.random() < 0.02:
            data += rng.choice([b"a = " + b"[" * 50_000, b"\nseed = 0x" + b"f" * 9000, b"\nepochs = " + b"9" * 9000])
        return lambda: self._file(data)

    def _file(self, data: bytes) -> str:
        text = data.decode("utf-8", errors="replace")
        given = parse_toml(text, "x.toml")
        made = make_settings(
            given.model or "cordgt", given.keys, seed=0 if given.seed is None else given.seed, where="x.toml"
        )
        if from_toml(made.to_toml(), "again") != made:
            raise Misread("the settings differ after writing and reading TOML")
        return "read and compared"

    def _keys(self, rng: Random) -> str:
        from cordgt.training.settings import known_keys

        values = [*(k.decode("utf-8", "replace") for k in EXTREMES), 10**400, -1, 1.5, [1, 2], {"1": 2}, [], None, True]
        made = make_settings(
            "cordgt", {rng.choice(known_keys()): rng.choice(values) for _ in range(2)}, seed=rng.choice([0, 5])
        )
        if from_toml(made.to_toml(), "again") != made:
            raise Misread("the settings differ after writing and reading TOML")
        return "read and compared"


# -------------------- all of them


def _stores(folder: Path) -> Any:
    from .store_edits import Stores  # imports this module

    return Stores(folder)


class Fuzzer:
    """The targets with a temporary folder, in memory if possible."""

    def __init__(self, real: dict[str, bytes] | None = None) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="cordgt-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self._real = real or {}
        self._targets: dict[str, Any] = {}

    def target(self, name: str) -> Any:
        if name not in self._targets:
            made: dict[str, Callable[[], Any]] = {
                "readers": lambda: Readers(self._make_folder("readers"), self._real),
                "runs": lambda: Runs(self._make_folder("runs")),
                "settings": SettingsFiles,
                "stores": lambda: _stores(self._make_folder("stores")),
            }
            self._targets[name] = made[name]()
        return self._targets[name]

    def _make_folder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        return path

    def try_one(self, name: str, seed: int, number: int, seconds: float = 10.0) -> Outcome:
        """Return the outcome of the input with this number, which is always the same."""
        attempt = self.target(name).prepare(random.Random(f"{seed}/{name}/{number}"))
        return run_attempt(attempt, seconds)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


TARGETS = ("readers", "runs", "settings", "stores")
