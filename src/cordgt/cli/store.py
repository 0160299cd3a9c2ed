"""Commands for stores on disk: convert, append, check."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.filesize import decimal
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from cordgt.cli import console
from cordgt.cli.loading import load_data
from cordgt.cli.options import add_column_options, flag, option
from cordgt.errors import DataError, check_choice

if TYPE_CHECKING:
    from cordgt.store.store import Store

MAX_EVENTS_FOR_REPEATS = 5_000_000  # after a merge, count repeated events only in stores up to this size
AnyData = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A known dataset's name, a file, a folder of Parquet or CSV files, or a store."
    ),
]
StoreDir = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by `cordgt data convert`.")]
Memory = Annotated[str, option("SIZE", "Memory limit for making a store, at least 500MB.")]


class StoreBar(console.StageBar):
    """Shows a bar for each stage on a terminal, and prints its time at the end."""

    def __init__(self) -> None:
        super().__init__(MofNCompleteColumn(), TimeElapsedColumn())
        self.stage, self.start_time = "", 0.0

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self._end_stage()

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._end_stage()
        super().on_stage_start(name, total)
        self.stage, self.start_time = name, time.perf_counter()

    def _end_stage(self) -> None:
        if self.stage:
            console.print_note(f"{self.stage}: {time.perf_counter() - self.start_time:.1f} s")


@add_column_options()
def data_convert(
    data: AnyData,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .csv or .parquet file; any other name makes a store.")],
    columns: dict[str, Any],
    memory: Memory = "4GB",
    replace: Annotated[bool, flag("--replace", "Replace OUT if it is already a store.")] = False,
) -> None:
    """Sort and validate DATA, and write it as CSV, Parquet, or a store: a folder of memory-mapped files.

    A store is made in bounded memory from data of any size. The same command resumes an interrupted conversion.
    """
    if out.suffix.lower() in (".csv", ".parquet") and not out.is_dir():
        _convert_to_file(data, out, columns)
        return
    if out.suffix.lower() == ".part":
        raise DataError(f"{out}: names ending in .part are reserved for unfinished stores. Choose another name.")
    if out.suffix.lower() not in ("", ".store") and not out.is_dir():
        raise DataError(f"{out} ends in '{out.suffix}'. Use .csv, .parquet, .store or no ending (a store).")
    from cordgt.events.notes import merge_append_notes
    from cordgt.io.convert import convert_to_store, parse_size
    from cordgt.store.store import partial_path

    size = parse_size(memory)
    with StoreBar() as bar:
        try:
            store = convert_to_store(data, out, memory=size, replace=replace, callbacks=bar, **columns)
        except KeyboardInterrupt:
            console.print_note(f"Finished work is kept in {partial_path(out)}. Run the same command to resume.")
            raise
    for text in merge_append_notes(store.notes):
        console.print_note(f"{store.name}: {text}")
    console.print_note(f"{out}: store with {store.n_events:,} events and {store.n_nodes:,} nodes, {_size(store)}")


def _convert_to_file(data: str, out: Path, columns: dict[str, Any]) -> None:
    from cordgt.cli import writers
    from cordgt.events.export import export_stream
    from cordgt.io.convert import check_store

    writers.check_output(out, (".csv", ".parquet"))
    with StoreBar() as bar:
        check_store(data, bar)
    stream = load_data(data, columns)
    for path in export_stream(stream, out):
        console.print_note(f"{path}: written")


@add_column_options(without="node_features")
def data_append(
    store: StoreDir,
    data: Annotated[
        str, typer.Argument(metavar="NEW", help="Later events: a file, a folder of files, a known name or a store.")
    ],
    columns: dict[str, Any],
    late: Annotated[
        str,
        option("WORD", "What to do with events older than the store's last: refuse, or merge (rebuilds the store)."),
    ] = "refuse",
    allow_duplicates: Annotated[
        bool, flag("--allow-duplicates", "Append NEW even if the same events were added before.")
    ] = False,
    memory: Memory = "4GB",
) -> None:
    """Append later events to a store. A failed or interrupted append leaves the store unchanged.

    If NEW holds no events, or the same events were added before, the command says so, appends nothing and succeeds.
    """
    from cordgt.io.bad_rows import is_skip_note
    from cordgt.io.convert import append_to, inherited_columns, parse_size
    from cordgt.store.append import LatePolicy
    from cordgt.store.store import open_store

    before, size = open_store(store), parse_size(memory)
    check_choice("--late", late, get_args(LatePolicy))  # before reading
    inherited = inherited_columns(before, data, columns)
    if inherited:
        options = (f"--{k.replace('_', '-')} {','.join(v) if isinstance(v, list) else v}" for k, v in inherited.items())
        console.print_note(f"{data} is read with the columns of {store}: {' '.join(options)}")
    n_repeated_before = _count_repeated(before) if late == "merge" else 0  # a merge replaces the store
    with StoreBar() as bar:
        grown = append_to(
            store,
            data,
            late=late,  # type: ignore[arg-type]  # checked above
            allow_duplicates=allow_duplicates,
            memory=size,
            callbacks=bar,
            **columns,
        )
    n_events, n_nodes = grown.n_events - before.n_events, grown.n_nodes - before.n_nodes
    if n_events == 0:
        console.print_note(f"{store}: unchanged, {grown.n_events:,} events in all")
        return
    if late == "merge":
        n_repeats = _count_repeated(grown) - n_repeated_before
    else:
        n_repeats = _count_repeated_at_end(grown, before.n_events)
    if n_repeats > 0:
        console.print_note(
            f"{n_repeats:,} of the new events repeat an existing one (same pair, time and features). Check that you "
            "did not append them before."
        )
    for text in grown.notes[len(before.notes) :]:
        if is_skip_note(text):
            console.print_note(f"{data}: {text}")
    console.print_note(
        f"{store}: added {n_events:,} events and {n_nodes:,} nodes; {grown.n_events:,} events in all, {_size(grown)}"
    )


def _count_repeated(store: Store) -> int:
    """Return the number of events that repeat another; 0 if the store is too large to scan."""
    from cordgt.events.describe import count_duplicates

    return 0 if store.n_events > MAX_EVENTS_FOR_REPEATS else count_duplicates(store.stream())


def _count_repeated_at_end(grown: Store, n: int) -> int:
    """Return the number of events after the first ``n`` that repeat one of these. Only events of the same time can."""
    import numpy as np

    from cordgt.events.describe import count_duplicates

    longer = grown.stream()
    since = int(longer.tie_start[n - 1])
    until = int(np.searchsorted(longer.tie_start, since, side="right"))
    return count_duplicates(longer, since, until) - count_duplicates(longer, since, n)


def data_check(store: StoreDir) -> None:
    """Verify every byte of a store: checksums, contents and fingerprints, and the checksums of its training indexes.

    Other commands do so only when they first use a store after its files have changed.
    """
    from cordgt.store.masked_index import verify_masked_indexes
    from cordgt.store.store import open_store

    opened = open_store(store)
    with StoreBar() as bar:
        bar.on_stage_start("checking", opened.n_bytes())
        opened.verify(bar)
        bar.on_stage_start("checking training indexes", None)
        verify_masked_indexes(opened.path, bar)
    console.stdout.print(f"{store} is intact: {opened.n_events:,} events, {opened.n_nodes:,} nodes, {_size(opened)}.")


def _size(store: Store) -> str:
    return decimal(store.n_bytes(), precision=2)
