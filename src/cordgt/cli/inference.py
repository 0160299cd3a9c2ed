"""Commands that query a trained model: predict, recommend, embed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.loading import open_run, query_columns
from cordgt.cli.options import (
    FILE_ENDINGS,
    At,
    Device,
    EscapeFormulas,
    Events,
    Json,
    Output,
    RunDir,
    add_column_options,
    flag,
    option,
)
from cordgt.errors import SettingError
from cordgt.events.ids import Side


@add_column_options(without="ids")
def predict(
    run: RunDir,
    columns: dict[str, Any],
    pairs: Annotated[Path | None, option("FILE", "Pairs to score: src,dst[,time].")] = None,
    source: Annotated[str | None, option("ID", "Source of a single pair, instead of --pairs.")] = None,
    destination: Annotated[str | None, option("ID", "Destination of a single pair.")] = None,
    at: At = None,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Score pairs of nodes. A higher score means that an interaction is more likely.

    A score lies between 0 and 1 and compares the pair with a random one. It is not a probability.
    Column options apply to --pairs, and to --events if that file has these columns.
    """
    import numpy as np

    from cordgt.cli import answers, writers
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_pairs

    is_single = source is not None and destination is not None
    if is_single == (pairs is not None) or (source is None) != (destination is None):
        raise SettingError("Give either --pairs FILE, or --source ID and --destination ID.")
    if pairs is None and events is None and columns:
        raise SettingError("--src, --dst and --time name columns of a file, but no file was given.")
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns)
    if pairs is None:
        sources, destinations = (answers.parse_ids(loaded, [str(one)]) for one in (source, destination))
        times = None if at is None else np.array([loaded.stream.time.parse(at)])
    else:
        file = load_file(pairs)
        in_file = query_columns(loaded, file, columns, ("src", "dst", "time"), has_events=events is not None)
        time_format = columns.get("time_format") or loaded.columns.get("time_format")
        sources, destinations, times = read_pairs(file, **in_file, time_format=time_format, axis=loaded.stream.time)
        if at is not None:
            if times is not None:
                raise SettingError(f"--at: {pairs} has its own times. Remove --at, or the times.")
            times = np.full(len(sources), loaded.stream.time.parse(at))
    _note_times(loaded, times)
    if loaded.predictor.model.learns_ranking:
        console.print_note("This model learns to rank: compare scores of one source, not of different sources.")
    with _query_progress(len(sources)) as callbacks:
        table = answers.score_table(loaded, sources, destinations, times, callbacks)
    writers.write_table(table, output, json_, escape_formulas=escape_formulas)
    _explain_untrained(loaded, table.column("note"))


@add_column_options(without="ids")
def recommend(
    run: RunDir,
    columns: dict[str, Any],
    source: Annotated[list[str], option("ID", "The node to find partners for; may be repeated.")] = [],  # noqa: B006
    sources: Annotated[Path | None, option("FILE", "Many nodes to find partners for.")] = None,
    candidate: Annotated[
        list[str], option("ID", "A destination to choose from; may be repeated.", show_default="every destination")
    ] = [],  # noqa: B006
    candidates: Annotated[Path | None, option("FILE", "The destinations to choose from, one id per row.")] = None,
    at: At = None,
    top: Annotated[int, option("N", "Number of partners.", min=1)] = 10,
    new_only: Annotated[bool, flag("--new-only", "Leave out earlier partners.")] = False,
    exclude: Annotated[Path | None, option("FILE", "Destinations to leave out, one id per row.")] = None,
    exclude_id: Annotated[list[str], option("ID", "A destination to leave out; may be repeated.")] = [],  # noqa: B006
    per_group: Annotated[int | None, option("N", "At most N destinations of a group; needs --groups.", min=1)] = None,
    groups: Annotated[
        Path | None, option("FILE", "Group of each destination: a column of ids and a column `group`.")
    ] = None,
    budget: Annotated[
        int | None,
        option("N", "Candidates that the model ranks.", min=1, show_default="64, and at least 4 times --top"),
    ] = None,
    exhaustive: Annotated[bool, flag("--exhaustive", "Rank every candidate with the model: slow, exact.")] = False,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Recommend the destinations that a node is most likely to interact with next.

    Candidates are the destinations of the history, or those of --candidates, without the node itself. A fast first
    scorer chooses --budget candidates, then the model ranks them.
    """
    from cordgt.cli import answers, writers
    from cordgt.io.groups import read_groups
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    if bool(source) == (sources is not None):
        raise SettingError("Give either --source ID or --sources FILE.")
    if candidate and candidates is not None:
        raise SettingError("Give either --candidate ID or --candidates FILE.")
    if (per_group is None) != (groups is None):
        raise SettingError("Give --per-group N and --groups FILE together.")
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns)

    def read_file(path: Path, name: Side) -> list[Any]:
        file = load_file(path)
        in_file = query_columns(loaded, file, columns, (name,), has_events=events is not None)
        return read_ids(file, column=in_file.get(name), side=name).to_pylist()

    ids: list[Any] = source if sources is None else read_file(sources, "src")
    choices: list[Any] = candidate if candidates is None else read_file(candidates, "dst")
    time_of_query = None if at is None else loaded.stream.time.parse(at)
    _note_times(loaded, None if time_of_query is None else [time_of_query])
    filters = {
        "candidates": choices or None,
        "exclude": exclude_id + ([] if exclude is None else [str(x) for x in read_file(exclude, "dst")]) or None,
        "new_only": new_only,
        "per_group": per_group,
        "groups": None if groups is None else read_groups(groups),
    }
    if not exhaustive:
        _prepare_first_scorer(loaded)
    stage_counts: list[dict[str, int]] = []
    with _query_progress(len(ids)) as callbacks:
        table = answers.recommendation_table(
            loaded,
            ids,
            time_of_query,
            top,
            callbacks,
            stage_counts=stage_counts,
            budget=budget,
            exhaustive=exhaustive,
            **filters,
        )
    shown = ["rank", "node", "score", "met", "note"] if len(ids) == 1 else None
    rows = [row | {"candidates": counts} for row, counts in zip(table.to_pylist(), stage_counts, strict=True)]
    writers.write_table(table, output, json_, shown, escape_formulas=escape_formulas, json_rows=rows)
    if len(ids) == 1 and stage_counts and stage_counts[0]["ranked"] < stage_counts[0]["destinations"] - 1:
        console.print_note(_stages_text(stage_counts[0]))
    _explain_untrained(loaded, table.column("src_note"))


@add_column_options(without="ids")
def embed(
    run: RunDir,
    output: Annotated[Path, option("FILE", f"Where to write the embeddings: {FILE_ENDINGS}.")],
    columns: dict[str, Any],
    nodes: Annotated[
        Path | None,
        option(
            "FILE",
            "The nodes, one id per row. Add a column `side` (src or dst) if an id could be either.",
            show_default="every node of the history",
        ),
    ] = None,
    at: At = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
) -> None:
    """Write an embedding vector for each node."""
    from cordgt.cli import answers, writers
    from cordgt.io.column_options import columns_in_header
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    writers.check_output(output)
    loaded = open_run(run, device, events, columns)
    ids = sides = None
    if nodes is not None:
        file = load_file(nodes)
        in_file = query_columns(loaded, file, columns, ("src",), has_events=events is not None)
        ids = read_ids(file, column=in_file.get("src"))
        if columns_in_header(file, {"src": "side"}):
            sides = read_ids(file, column="side").to_pylist()
    time_of_query = None if at is None else loaded.stream.time.parse(at)
    table = answers.embedding_table(loaded, ids, sides, time_of_query)
    writers.write_table(table, output, None, escape_formulas=escape_formulas)


def _prepare_first_scorer(run: Any) -> None:
    """Make the run's first scorer now, with a progress bar, if it has none."""
    if run.needs_first_scorer():
        console.print_note(f"{run.path}: making the first scorer of recommendations, once")
        with console.ProgressBar() as bar:
            run.load_first_scorer(run.predictor, bar)


def _stages_text(counts: dict[str, int]) -> str:
    """Return how many candidates each stage saw, as one line."""
    first = f", {counts['scored_first']:,} scored first" if counts["scored_first"] else ""
    return f"candidates: {counts['destinations']:,}{first}, {counts['ranked']:,} ranked by the model"


def _note_times(run: Any, times: Any) -> None:
    """Print the times of the queries with their dates, if they are numbers that count from 1970."""
    stream = run.stream
    if not stream.epoch_unit:
        return
    low, high = (stream.t[-1], stream.t[-1]) if times is None else (min(times), max(times))
    if low == high:
        console.print_note(f"time of the query: {stream.format_time(low)}")
    else:
        console.print_note(f"times of the queries: {stream.format_time(low)} to {stream.format_time(high)}")


def _explain_untrained(run: Any, notes: Any) -> None:
    """Suggest --refit if an answer has a node without training events and the run is not refitted."""
    from cordgt.inference.predictor import NOTE_NOT_IN_TRAINING

    can_refit = run.predictor.model.is_trainable and "refit" not in run.metrics
    if can_refit and any(NOTE_NOT_IN_TRAINING in note for note in notes.to_pylist()):
        console.print_note(
            f'"{NOTE_NOT_IN_TRAINING}": the model was not trained on any event of this node, because new nodes and '
            "later events are held out for evaluation. `cordgt train … --refit` also trains a model on all events."
        )


@contextmanager
def _query_progress(n_queries: int) -> Iterator[Callback]:
    """Show a progress bar over ``n_queries``."""
    with console.ProgressBar() as bar:
        bar.on_stage_start("scoring", n_queries)
        yield bar
