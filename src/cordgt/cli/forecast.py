"""Commands about who acts when: next, active."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cordgt.cli.inference import explain_untrained, note_times, parse_within, query_progress
from cordgt.cli.loading import open_run, query_columns
from cordgt.cli.options import (
    At,
    Device,
    EscapeFormulas,
    Events,
    Json,
    Output,
    RunDir,
    add_column_options,
    option,
)
from cordgt.errors import SettingError


@add_column_options(without="ids")
def next_event(
    run: RunDir,
    columns: dict[str, Any],
    source: Annotated[list[str], option("ID", "The source that acts; may be repeated.")] = [],  # noqa: B006
    sources: Annotated[Path | None, option("FILE", "Many sources, one id per row.")] = None,
    at: At = None,
    top: Annotated[int, option("N", "Number of partners.", min=0)] = 3,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Say when a source acts next, and with whom.

    The next event is as likely before the median as after it.
    With a probability of 80 % it comes between low and high.
    The partners are the most likely destinations at the median.
    """
    from cordgt.cli import answers, writers
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    if bool(source) == (sources is not None):
        raise SettingError("Give either --source ID or --sources FILE.")
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns)
    ids: list[Any] = source
    if sources is not None:
        file = load_file(sources)
        in_file = query_columns(loaded, file, columns, ("src",), has_events=events is not None)
        ids = read_ids(file, column=in_file.get("src"), side="src").to_pylist()
    time_of_query = None if at is None else loaded.stream.parse_time(at)
    note_times(loaded, None if time_of_query is None else [time_of_query])
    with query_progress(len(ids)) as callbacks:
        table, rows = answers.next_event_table(loaded, ids, time_of_query, top, callbacks)
    writers.write_json(rows, json_)
    if output is not None or json_ is None:
        writers.write_table(table, output, None, _shown(loaded, table), escape_formulas=escape_formulas)
    explain_untrained(loaded, table.column("note"))


@add_column_options(without="ids")
def active(
    run: RunDir,
    columns: dict[str, Any],
    within: Annotated[str, option("TIME", "Horizon, such as 15m, 12h, 7d, or a number in the unit of the times.")],
    role: Annotated[str, option("WORD", "What the nodes do: source or destination.")] = "source",
    at: At = None,
    top: Annotated[int, option("N", "Number of nodes.", min=1)] = 10,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Rank the sources by the probability that they act within a horizon.

    Candidates are the sources of the history, or its destinations with --role destination.
    """
    from cordgt.cli import answers, writers

    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns)
    time_of_query = None if at is None else loaded.stream.parse_time(at)
    note_times(loaded, None if time_of_query is None else [time_of_query])
    horizon = parse_within(loaded, within, time_of_query)
    table = answers.active_table(loaded, horizon, time_of_query, top, role)
    writers.write_table(table, output, json_, escape_formulas=escape_formulas)
    explain_untrained(loaded, table.column("note"))


def _shown(run: Any, table: Any) -> list[str]:
    """Return the columns of `next_event` for a terminal: dates instead of numbers that count from 1970."""
    if not run.stream.epoch_unit:
        return [name for name in table.column_names if name not in ("time", "wait")]
    hidden = {"time", "wait", "median", "low", "high"}
    return [name for name in table.column_names if name not in hidden]
