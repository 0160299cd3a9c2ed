"""Commands for stores on disk: convert, append, check."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from cordgt.cli import console
from cordgt.cli.loading import given_columns, load_data
from cordgt.cli.options import Dst, Features, Ids, Label, NodeFeatures, Src, Time, flag
from cordgt.errors import DataError, check_choice

if TYPE_CHECKING:
    from cordgt.store.store import Store

MAX_EVENTS_FOR_REPEATS = 5_000_000  # after a merge, count repeated events only in stores up to this size
Anything = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A known dataset's name, a file, a folder of Parquet or CSV files, or a store."
    ),
]
StoreDir = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by `cordgt data convert`.")]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory limit for making a store, at least 500MB.")
]


class StoreBar(console.StageBar):
    """A bar for each stage on a terminal, and a line when it is done."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.stage, self.began = "", 0.0

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self._end_stage()

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._end_stage()
        super().on_stage_start(name, total)
        self.stage, self.began = name, time.perf_counter()

    def _end_stage(self) -> None:
        if self.stage:
            console.note(f"{self.stage}: {time.perf_counter() - self.began:.1f} s")


def data_convert(
    data: Anything,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .csv or .parquet file; any other name makes a store.")],
    memory: Memory = "4GB",
    replace: Annotated[bool, flag("--replace", "Replace OUT if it is already a store.")] = False,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
) -> None:
    """Write DATA, sorted and validated, as CSV, as Parquet, or as a store: a folder that is mapped, not loaded.

    A store is made in bounded memory from data of any size. The same command resumes an interrupted conversion.
    """
    columns = given_columns(src, dst, time, label, features, ids, node_features)
    if out.suffix.lower() in (".csv", ".parquet") and not out.is_dir():
        _convert_to_file(data, out, columns)
        return
    if out.suffix.lower() == ".part":
        raise DataError(f"{out}: names ending in .part are reserved for unfinished stores. Choose another name.")
    if out.suffix.lower() not in ("", ".store") and not out.is_dir():
        raise DataError(f"{out} ends in '{out.suffix}'. Use .csv, .parquet, .store or no ending (a store).")
    from cordgt.io.convert import convert_to_store, parse_size
    from cordgt.store.store import part_folder

    size = parse_size(memory)
    with StoreBar() as bar:
        try:
            store = convert_to_store(data, out, memory=size, replace=replace, callbacks=bar, **columns)
        except KeyboardInterrupt:
            console.note(f"Finished work is kept in {part_folder(out)}. Run the same command to resume.")
            raise
    for text in store.notes:
        console.note(f"{store.name}: {text}")
    console.note(f"{out}: store with {store.n_events:,} events and {store.n_nodes:,} nodes, {_size(store)}")


def _convert_to_file(data: str, out: Path, columns: dict[str, Any]) -> None:
    from cordgt.cli import writers
    from cordgt.io.convert import check_store
    from cordgt.io.readers import convert

    writers.check_output(out, (".csv", ".parquet"))
    with StoreBar() as bar:
        check_store(data, bar)
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
            help="Events older than the store's last: refuse, or merge, which rebuilds the store.",
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
    """Append later events to a store. A failed or interrupted append leaves the store unchanged."""
    from cordgt.io.convert import append_to, inherited_columns, parse_size
    from cordgt.io.open_table import COMMENTS
    from cordgt.store.append import LatePolicy
    from cordgt.store.store import open_store

    columns = given_columns(src, dst, time, label, features, ids)
    before, size = open_store(store), parse_size(memory)
    check_choice("--late", late, get_args(LatePolicy))  # before reading
    inherited = inherited_columns(before, data, columns)
    if inherited:
        options = (f"--{k} {','.join(v) if isinstance(v, list) else v}" for k, v in inherited.items())
        console.note(f"{data} is read with the columns of {store}: {' '.join(options)}")
    n_repeated_before = _count_repeated(before) if late == "merge" else 0  # a merge replaces the store
    with StoreBar() as bar:
        grown = append_to(
            store,
            data,
            late=late,  # type: ignore[arg-type]  # checked above
            memory=size,
            callbacks=bar,
            **columns,
        )
    if late == "merge":
        n_repeats = _count_repeated(grown) - n_repeated_before
    else:
        n_repeats = _count_repeated_at_end(grown, before.n_events)
    if n_repeats > 0:
        console.note(
            f"{n_repeats:,} of the new events repeat an existing one (same pair, time and features). Did you append "
            "them before?"
        )
    for text in grown.notes[len(before.notes) :]:
        if COMMENTS in text:
            console.note(f"{data}: {text}")
    n_events, n_nodes = grown.n_events - before.n_events, grown.n_nodes - before.n_nodes
    console.note(
        f"{store}: added {n_events:,} events and {n_nodes:,} nodes; {grown.n_events:,} events in all, {_size(grown)}"
    )


def _count_repeated(store: Store) -> int:
    """Number of events that repeat another; 0 if the store is too large to scan."""
    from cordgt.events.describe import n_repeated

    return 0 if store.n_events > MAX_EVENTS_FOR_REPEATS else n_repeated(store.stream())


def _count_repeated_at_end(grown: Store, n: int) -> int:
    """Number of events after the first ``n`` that repeat one of these; only those at the last time of these can."""
    import numpy as np

    from cordgt.events.describe import n_repeated

    longer = grown.stream()
    since = int(longer.tie_start[n - 1])
    until = int(np.searchsorted(longer.tie_start, since, side="right"))
    return n_repeated(longer, since, until) - n_repeated(longer, since, n)


def data_check(store: StoreDir) -> None:
    """Verify the checksums of all files of a store, including its training indexes."""
    from cordgt.store.masked_index import check_indexes
    from cordgt.store.store import open_store

    found = open_store(store)
    with StoreBar() as bar:
        bar.on_stage_start("checking", found.n_bytes())
        found.check(bar)
        bar.on_stage_start("checking training indexes", None)
        check_indexes(found.path, bar)
    console.out.print(f"{store} is intact: {found.n_events:,} events, {found.n_nodes:,} nodes, {_size(found)}.")


def _size(store: Any) -> str:
    """Size of all arrays in GB, MB or kB."""
    n: int = store.n_bytes()
    size, unit = next((k for k in ((10**9, "GB"), (10**6, "MB")) if n >= k[0]), (1000, "kB"))
    return f"{n / size:.2f} {unit}"
