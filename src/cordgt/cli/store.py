"""The commands that make stores on disk and look after them: convert, append, check."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cordgt.cli import console
from cordgt.cli.options import Dst, Features, Ids, Label, NodeFeatures, Src, Time, flag
from cordgt.cli.parts import given_columns, load_data
from cordgt.errors import DataError, check_choice

if TYPE_CHECKING:
    from cordgt.store.folder import Store

LOOKED_THROUGH = 5_000_000  # events of a store in which repeated ones are counted after a merge
Anything = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A known dataset's name, a file, a folder of Parquet or CSV files, or a store."
    ),
]
StoreDir = Annotated[Path, typer.Argument(metavar="STORE", help="A store, made by `cordgt data convert`.")]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="How much memory making a store may take: 500MB or more.")
]


class Progressing:
    """A bar for each phase on a terminal, and a line when it is done."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console.err, transient=True, disable=not console.err.is_terminal)
        self.task: TaskID | None = None
        self.phase, self.began = "", 0.0

    def __enter__(self) -> Progressing:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()
        if error is None:
            self._ends()

    def begins(self, phase: str, total: int | None) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self._ends()
        self.task = self.bar.add_task(phase, total=total)
        self.phase, self.began = phase, time.perf_counter()

    def _ends(self) -> None:
        if self.phase:
            console.note(f"{self.phase}: {time.perf_counter() - self.began:.1f} s")

    def step(self, n: int) -> None:
        if self.task is not None:
            self.bar.update(self.task, advance=n)


def data_convert(
    data: Anything,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A .csv or .parquet file; any other name is that of a store.")
    ],
    memory: Memory = "4GB",
    replace: Annotated[bool, flag("--replace", "Where OUT is a store already: the new one takes its place.")] = False,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
) -> None:
    """Write DATA, sorted and checked, as CSV or Parquet, or as a store: a folder that is used without being read.

    A store is made in bounded memory, from data of any size. Interrupted, the same command goes on where it was.
    """
    columns = given_columns(src, dst, time, label, features, ids, node_features)
    if out.suffix.lower() in (".csv", ".parquet") and not out.is_dir():
        _convert_to_file(data, out, columns)
        return
    if out.suffix.lower() == ".part":
        raise DataError(f"{out}: names that end in .part are for stores that are being made. Choose another one.")
    if out.suffix.lower() not in ("", ".store") and not out.is_dir():
        raise DataError(f"{out} ends in '{out.suffix}'; .csv, .parquet, .store (or nothing, for a store) was expected.")
    from cordgt.conversion.convert import convert_to_store, parse_size
    from cordgt.store.folder import part_folder

    size = parse_size(memory)
    with Progressing() as watcher:
        try:
            store = convert_to_store(data, out, memory=size, replace=replace, watcher=watcher, **columns)
        except KeyboardInterrupt:
            console.note(f"What was done is kept in {part_folder(out)}: the same command goes on from there.")
            raise
    for text in store.notes:
        console.note(f"{store.name}: {text}")
    console.note(f"{out}: a store of {store.n_events:,} events of {store.n_nodes:,} nodes, {_size(store)}")


def _convert_to_file(data: str, out: Path, columns: dict[str, Any]) -> None:
    from cordgt.cli import answers
    from cordgt.conversion.convert import check_store
    from cordgt.reading.readers import convert

    answers.check_output(out, (".csv", ".parquet"))
    with Progressing() as watcher:
        check_store(data, watcher)
    stream = load_data(data, columns)
    for path in convert(stream, out):
        console.note(f"{path}: written")


def data_append(
    store: StoreDir,
    data: Annotated[
        str, typer.Argument(metavar="NEW", help="Later events: a file, a folder of files, a known name or a store.")
    ],
    late: Annotated[
        str,
        typer.Option(
            "--late",
            metavar="WORD",
            help="Events older than the store's last: refuse, or merge, which makes the store anew.",
        ),
    ] = "refuse",
    memory: Memory = "4GB",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
) -> None:
    """Add later events to a store. Until it is done, and where it fails, the store is what it was."""
    from cordgt.conversion.append import Late
    from cordgt.conversion.convert import append_to, kept_columns, parse_size
    from cordgt.reading.opening import COMMENTS
    from cordgt.store.folder import open_store

    columns = given_columns(src, dst, time, label, features, ids)
    before, size = open_store(store), parse_size(memory)
    check_choice("--late", late, get_args(Late))  # before the data are looked at
    kept = kept_columns(before, data, columns)
    if kept:
        told = (f"--{k} {','.join(v) if isinstance(v, list) else v}" for k, v in kept.items())
        console.note(f"{data} is read from the columns that {store} was made with: {' '.join(told)}")
    repeated = _repeated_in(before) if late == "merge" else 0  # before another store is put in its place
    with Progressing() as watcher:
        grown = append_to(
            store,
            data,
            late=late,  # type: ignore[arg-type]  # checked above
            memory=size,
            watcher=watcher,
            **columns,
        )
    events, nodes = grown.n_events - before.n_events, grown.n_nodes - before.n_nodes
    merged = late == "merge"
    twice = _repeated_in(grown) - repeated if merged else _repeated_at_the_seam(grown, before.n_events)
    if twice > 0:
        console.note(
            f"{twice:,} of the new events repeat one that is there, in pair, time and features: appended before?"
        )
    for text in grown.notes[len(before.notes) :]:
        if COMMENTS in text:
            console.note(f"{data}: {text}")
    console.note(
        f"{store}: {events:,} events and {nodes:,} nodes more; {grown.n_events:,} events in all, {_size(grown)}"
    )


def _repeated_in(store: Store) -> int:
    """How many events of a store repeat another; 0 where it is too large to be looked through each time."""
    from cordgt.events.describe import n_repeated

    return 0 if store.n_events > LOOKED_THROUGH else n_repeated(store.stream())


def _repeated_at_the_seam(grown: Store, n: int) -> int:
    """How many events after the first ``n`` repeat one of these: only those of the very last time can."""
    import numpy as np

    from cordgt.events.describe import n_repeated

    longer = grown.stream()
    since = int(longer.tie_start[n - 1])
    until = int(np.searchsorted(longer.tie_start, since, side="right"))
    return n_repeated(longer, since, until) - n_repeated(longer, since, n)


def data_check(store: StoreDir) -> None:
    """Read every byte of a store, and of the indexes for training in it, and compare it with its checksums."""
    from cordgt.store.folder import open_store
    from cordgt.store.hidden_index import check_indexes

    found = open_store(store)
    with Progressing() as watcher:
        watcher.begins("checking", found.n_bytes())
        found.check(watcher.step)
        watcher.begins("checking indexes for training", None)
        check_indexes(found.path, watcher.step)
    console.out.print(f"{store} is sound: {found.n_events:,} events of {found.n_nodes:,} nodes, {_size(found)}.")


def _size(store: Any) -> str:
    """Of its arrays, in a unit that leaves something to read."""
    n: int = store.n_bytes()
    size, unit = next((k for k in ((10**9, "GB"), (10**6, "MB")) if n >= k[0]), (1000, "kB"))
    return f"{n / size:.2f} {unit}"
