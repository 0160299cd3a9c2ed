"""Commands that query a trained model: predict, recommend, embed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.loading import open_run, prefetch_history, query_columns
from cordgt.cli.options import (
    FILE_ENDINGS,
    At,
    Device,
    EscapeFormulas,
    Events,
    Json,
    Output,
    RunDir,
    Within,
    add_column_options,
    flag,
    option,
)
from cordgt.cli.recommend_all import check_all_options, recommend_all
from cordgt.errors import EmptyInputError, SettingError
from cordgt.events.arrays import looks_like_number
from cordgt.events.ids import Side


@add_column_options(without="ids")
def predict(
    run: RunDir,
    columns: dict[str, Any],
    pairs: Annotated[Path | None, option("FILE", "Pairs to score: src,dst[,time].")] = None,
    source: Annotated[str | None, option("ID", "Source of a single pair, instead of --pairs.")] = None,
    destination: Annotated[str | None, option("ID", "Destination of a single pair.")] = None,
    at: At = None,
    within: Within = None,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Score pairs of nodes. A higher score means that an interaction is more likely.

    A score lies between 0 and 1 and compares the pair with a random one. It is not a probability.
    --within 7d adds the probability that the pair has an event within 7 days.
    Column options apply to --pairs, and to --events if that file has these columns.
    """
    is_single = source is not None and destination is not None
    if is_single == (pairs is not None) or (source is None) != (destination is None):
        raise SettingError("Give either --pairs FILE, or --source ID and --destination ID.")
    if pairs is None and events is None and columns:
        raise SettingError("--src, --dst and --time name columns of a file, but no file was given.")
    prefetched = prefetch_history(run)
    import numpy as np

    from cordgt.cli import answers, writers
    from cordgt.inference.answers import score_table
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_pairs

    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns, prefetched)
    if pairs is None:
        sources, destinations = (answers.parse_ids(loaded, [str(one)]) for one in (source, destination))
        times = None if at is None else np.array([loaded.stream.parse_time(at)])
    else:
        file = load_file(pairs)
        in_file = query_columns(loaded, file, columns, ("src", "dst", "time"), has_events=events is not None)
        time_format = columns.get("time_format") or loaded.columns.get("time_format")
        sources, destinations, times = read_pairs(file, **in_file, time_format=time_format, axis=loaded.stream.time)
        if at is not None:
            if times is not None:
                raise SettingError(f"--at: {pairs} has its own times. Remove --at, or the times.")
            times = np.full(len(sources), loaded.stream.parse_time(at))
    note_times(loaded, times)
    horizon = None if within is None else parse_within(loaded, within, times)
    if loaded.predictor.model.learns_ranking and horizon is None:
        console.print_note("This model learns to rank: compare scores of one source, not of different sources.")
    with query_progress(len(sources)) as callbacks:
        options: dict[str, Any] = {} if horizon is None else {"horizon": horizon, "forecasts": loaded.forecasts}
        table = score_table(loaded.predictor, sources, destinations, times, callbacks, **options)
    writers.write_table(table, output, json_, escape_formulas=escape_formulas)
    explain_untrained(loaded, table.column("note"))


@add_column_options(without="ids")
def recommend(
    run: RunDir,
    columns: dict[str, Any],
    source: Annotated[list[str], option("ID", "The node to find partners for; may be repeated.")] = [],  # noqa: B006
    sources: Annotated[Path | None, option("FILE", "Many nodes to find partners for.")] = None,
    destination: Annotated[
        list[str], option("ID", "A destination to find its best sources for; may be repeated.")
    ] = [],  # noqa: B006
    candidate: Annotated[
        list[str], option("ID", "A node to choose from; may be repeated.", show_default="every one of the history")
    ] = [],  # noqa: B006
    candidates: Annotated[Path | None, option("FILE", "The nodes to choose from, one id per row.")] = None,
    at: At = None,
    within: Within = None,
    top: Annotated[int, option("N", "Number of partners.", min=1)] = 10,
    new_only: Annotated[bool, flag("--new-only", "Leave out earlier partners.")] = False,
    all_: Annotated[
        bool, flag("--all", "Every source of the history; --output is a folder or part-*.parquet.")
    ] = False,
    shard: Annotated[str | None, option("K/N", "With --all: only the K-th of N shares of the parts.")] = None,
    workers: Annotated[
        int | None, option("N", "With --all: number of processes.", show_default="one per core", min=1)
    ] = None,
    part_size: Annotated[
        int | None, option("N", "With --all: number of sources in a part.", show_default="10000", min=1)
    ] = None,
    exclude: Annotated[Path | None, option("FILE", "Nodes to leave out, one id per row.")] = None,
    exclude_id: Annotated[list[str], option("ID", "A node to leave out; may be repeated.")] = [],  # noqa: B006
    per_group: Annotated[int | None, option("N", "At most N answers of a group; needs --groups.", min=1)] = None,
    groups: Annotated[
        Path | None, option("FILE", "Group of each candidate: a column of ids and a column `group`.")
    ] = None,
    budget: Annotated[
        int | None,
        option(
            "N",
            "Candidates that the model ranks.",
            min=1,
            show_default="measured in training, and at least 4 times --top; 10000 sources of a --destination",
        ),
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
    --within 7d ranks by the probability of an event within 7 days.
    --destination ID finds the best sources of a destination instead.
    """
    only_with_all = {"--shard": shard, "--workers": workers, "--part-size": part_size}
    only_without_all = {"--source": source, "--sources": sources, "--destination": destination, "--within": within}
    check_all_options(all_, only_without_all | only_with_all)
    n_questions = (bool(source), sources is not None, bool(destination)).count(True)
    if not all_ and n_questions != 1:
        one = "Give" if n_questions == 0 else "Give only one of"
        raise SettingError(f"{one} --source ID, --sources FILE, --destination ID or --all.")
    if candidate and candidates is not None:
        raise SettingError("Give either --candidate ID or --candidates FILE.")
    if (per_group is None) != (groups is None):
        raise SettingError("Give --per-group N and --groups FILE together.")
    if exhaustive and budget is not None:
        raise SettingError("--exhaustive ranks every candidate, so it has no --budget. Give one of the two.")
    prefetched = None if all_ else prefetch_history(run)
    from cordgt.cli import answers, writers
    from cordgt.inference.answers import recommendation_table
    from cordgt.inference.id_lists import describe_unknown
    from cordgt.io.groups import read_groups
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    if all_:

        def read_destinations(path: Path | None, given: list[str], may_be_empty: bool = False) -> list[Any] | None:
            if path is not None:
                try:
                    given = given + read_ids(load_file(path), column=columns.get("dst"), side="dst").to_pylist()
                except EmptyInputError:
                    if not may_be_empty:
                        raise
            return [str(one) for one in given] or None

        return recommend_all(
            run,
            output,
            shard=shard,
            workers=workers,
            part_size=part_size,
            escape_formulas=escape_formulas,
            json_=json_,
            at=at,
            top=top,
            new_only=new_only,
            candidates=read_destinations(candidates, candidate),
            exclude=read_destinations(exclude, exclude_id, may_be_empty=True),
            per_group=per_group,
            groups=None if groups is None else read_groups(groups),
            budget=budget,
            exhaustive=exhaustive,
            device=device,
            events=None if events is None else str(events),
            columns=columns,
        )
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, columns, prefetched)

    def read_file(path: Path, name: Side) -> list[Any]:
        file = load_file(path)
        in_file = query_columns(loaded, file, columns, (name,), has_events=events is not None)
        return read_ids(file, column=in_file.get(name), side=name).to_pylist()

    is_source = not destination
    side: Side = "dst" if is_source else "src"  # of the answers

    def read_excluded(path: Path) -> list[str]:
        try:
            return [str(one) for one in read_file(path, side)]
        except EmptyInputError:  # nothing to leave out
            return []

    ids: list[Any] = (source or destination) if sources is None else read_file(sources, "src")
    choices: list[Any] = candidate if candidates is None else read_file(candidates, side)
    unknown = describe_unknown(loaded.stream.ids, choices, side) if choices else ""
    if unknown:
        console.print_note(unknown)
    time_of_query = None if at is None else loaded.stream.parse_time(at)
    note_times(loaded, None if time_of_query is None else [time_of_query])
    horizon = None if within is None else parse_within(loaded, within, time_of_query)
    filters: dict[str, Any] = {
        "candidates": choices or None,
        "exclude": exclude_id + ([] if exclude is None else read_excluded(exclude)) or None,
        "new_only": new_only,
        "per_group": per_group,
        "groups": None if groups is None else read_groups(groups, side),
    }
    if is_source and not exhaustive:
        _prepare_first_scorer(loaded, filters)
    with query_progress(len(ids)) as callbacks:
        found = loaded.recommendations(
            ids,
            time_of_query,
            top,
            horizon,
            is_source=is_source,
            callbacks=callbacks,
            budget=budget,
            exhaustive=exhaustive,
            **filters,
        )
    table, remarks = recommendation_table(loaded.predictor, ids, found, horizon, is_source=is_source)
    answers.print_remarks(remarks)
    side_note = "src_note" if is_source else "dst_note"
    shown = [name for name in table.column_names if name not in ("src", "dst", side_note)] if len(ids) == 1 else None
    counts = [x.candidates and x.candidates.to_dict() for x in found for _ in x.recommendations]
    rows = [row | ({"candidates": n} if n else {}) for row, n in zip(table.to_pylist(), counts, strict=True)]
    writers.write_table(table, output, json_, shown, escape_formulas=escape_formulas, json_rows=rows)
    if len(ids) == 1 and counts and counts[0] and counts[0]["ranked"] < counts[0]["destinations"] - 1:
        console.print_note(_stages_text(counts[0]))
    explain_untrained(loaded, table.column(side_note))


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
    from cordgt.cli import writers
    from cordgt.inference.answers import embedding_table
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
    time_of_query = None if at is None else loaded.stream.parse_time(at)
    table = embedding_table(loaded.predictor, ids, sides, time_of_query)
    writers.write_table(table, output, None, escape_formulas=escape_formulas)


def _prepare_first_scorer(run: Any, filters: dict[str, Any]) -> None:
    """Make the run's first scorer now, with a progress bar, if it has none. A wrong filter is an error before that."""
    if run.needs_first_scorer():
        run.predictor.make_filter(**filters)
        console.print_note(f"{run.path}: making the first scorer of recommendations, once")
        with console.ProgressBar() as bar:
            run.load_first_scorer(run.predictor, bar)


def _stages_text(counts: dict[str, int]) -> str:
    """Return how many candidates each stage saw, as one line."""
    first = f", {counts['scored_first']:,} scored first" if counts["scored_first"] else ""
    return f"candidates: {counts['destinations']:,}{first}, {counts['ranked']:,} ranked by the model"


def note_times(run: Any, times: Any) -> None:
    """Print the times of the queries with their dates, if they are numbers that count from 1970."""
    stream = run.stream
    if not stream.epoch_unit:
        return
    low, high = (stream.t[-1], stream.t[-1]) if times is None else (min(times), max(times))
    if low == high:
        console.print_note(f"time of the query: {stream.format_time(low)}")
    else:
        console.print_note(f"times of the queries: {stream.format_time(low)} to {stream.format_time(high)}")


def parse_within(run: Any, within: str, times: Any) -> float:
    """Return the horizon as elapsed time. Print the unit of a bare number, if the times have one."""
    from cordgt.events.durations import unit_name

    horizon: float = run.horizon(within, times)
    if looks_like_number(within) and unit_name(run.stream):
        console.print_note(f"--within {within}: {within} {unit_name(run.stream)}")
    return horizon


def explain_untrained(run: Any, notes: Any) -> None:
    """Suggest --refit if an answer has a node without training events and the run is not refitted."""
    from cordgt.inference.predictor import NOTE_NOT_IN_TRAINING

    can_refit = run.predictor.model.is_trainable and "refit" not in run.metrics
    if can_refit and any(NOTE_NOT_IN_TRAINING in note for note in notes.to_pylist()):
        console.print_note(
            f'"{NOTE_NOT_IN_TRAINING}": the model was not trained on any event of this node, because new nodes and '
            "later events are held out for evaluation. `cordgt train … --refit` also trains a model on all events."
        )


@contextmanager
def query_progress(n_queries: int) -> Iterator[Callback]:
    """Show a progress bar over ``n_queries``."""
    with console.ProgressBar() as bar:
        bar.on_stage_start("scoring", n_queries)
        yield bar
