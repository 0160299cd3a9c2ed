"""Commands that query a trained model: predict, recommend, embed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.loading import answering, given_columns, open_run, query_columns
from cordgt.cli.options import (
    FILE_ENDINGS,
    At,
    Device,
    Dst,
    Events,
    Features,
    Json,
    Label,
    NodeFeatures,
    Output,
    RunDir,
    Src,
    Time,
    flag,
)
from cordgt.errors import SettingError


def predict(
    run: RunDir,
    pairs: Annotated[Path | None, typer.Option(metavar="FILE", help="The questions: src,dst[,time].")] = None,
    source: Annotated[
        str | None, typer.Option(metavar="ID", help="Source of a single pair, instead of --pairs.")
    ] = None,
    destination: Annotated[str | None, typer.Option(metavar="ID", help="Destination of a single pair.")] = None,
    at: At = None,
    output: Output = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Score pairs: how likely each source meets each destination.

    A score lies between 0 and 1 and compares with random partners. It is not the frequency of events.
    Column options apply to --pairs, and to --events if that file has these columns.
    """
    import numpy as np

    from cordgt.cli import writers
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_pairs

    single = source is not None and destination is not None
    if single == (pairs is not None) or (source is None) != (destination is None):
        raise SettingError("Give either --pairs FILE, or --source ID and --destination ID.")
    if pairs is None and events is None and given_columns(src, dst, time, label, features, None, node_features):
        raise SettingError("--src, --dst and --time name columns of a file, but no file was given.")
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, given_columns(src, dst, time, label, features, None, node_features))
    if pairs is None:
        sources, destinations = (writers.parse_ids(loaded, [str(one)]) for one in (source, destination))
        times = None if at is None else np.array([loaded.stream.time.parse(at)])
    else:
        file = load_file(pairs)
        columns = query_columns(loaded, file, given_columns(src, dst, time), has_events=events is not None)
        sources, destinations, times = read_pairs(file, **columns, axis=loaded.stream.time)
        if at is not None:
            if times is not None:
                raise SettingError(f"--at: {pairs} has times of its own. Remove --at, or the times.")
            times = np.full(len(sources), loaded.stream.time.parse(at))
    if loaded.predictor.model.learns_ranking:
        console.note("This model learns to rank: compare scores of one source's pairs, not of different sources.")
    with answering(len(sources)) as callbacks:
        table = writers.scores(loaded, sources, destinations, times, callbacks)
    writers.write(table, output, json_)
    _explain_untrained(loaded, table.column("note"))


def recommend(
    run: RunDir,
    source: Annotated[str | None, typer.Option(metavar="ID", help="The node to find partners for.")] = None,
    sources: Annotated[Path | None, typer.Option(metavar="FILE", help="Many nodes to find partners for.")] = None,
    at: At = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many partners.")] = 10,
    new_only: Annotated[bool, flag("--new-only", "Only partners it has not met yet.")] = False,
    output: Output = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Rank the destinations a node is most likely to meet next.

    Candidates are the destinations of the history, without the node itself.
    """
    from cordgt.cli import writers
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    if (source is None) == (sources is None):
        raise SettingError("Give either --source ID or --sources FILE.")
    writers.check_output(output)
    writers.check_json(json_)
    loaded = open_run(run, device, events, given_columns(src, dst, time, label, features, None, node_features))
    ids: list[Any] = [source]
    if sources is not None:
        file = load_file(sources)
        columns = query_columns(loaded, file, given_columns(src), has_events=events is not None)
        ids = read_ids(file, column=columns.get("src")).to_pylist()
    time_of_query = None if at is None else loaded.stream.time.parse(at)
    with answering(len(ids)) as callbacks:
        table = writers.recommendations(loaded, ids, time_of_query, top, new_only, callbacks)
    writers.write(table, output, json_, shown=["rank", "node", "score", "met", "note"] if source is not None else None)
    _explain_untrained(loaded, table.column("src_note"))


def embed(
    run: RunDir,
    output: Annotated[Path, typer.Option(metavar="FILE", help=f"Where to write the embeddings: {FILE_ENDINGS}.")],
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="every node of the history",
            help="The nodes, one id per row. Add a column `side` (src or dst) if an id could be either.",
        ),
    ] = None,
    at: At = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
) -> None:
    """Write an embedding vector for each node."""
    from cordgt.cli import writers
    from cordgt.io.column_options import columns_in_header
    from cordgt.io.open_table import load_file
    from cordgt.io.readers import read_ids

    writers.check_output(output)
    loaded = open_run(run, device, events, given_columns(src, dst, time, label, features, None, node_features))
    ids = sides = None
    if nodes is not None:
        file = load_file(nodes)
        columns = query_columns(loaded, file, given_columns(src), has_events=events is not None)
        ids = read_ids(file, column=columns.get("src"))
        if columns_in_header(file, {"src": "side"}):
            sides = read_ids(file, column="side").to_pylist()
    time_of_query = None if at is None else loaded.stream.time.parse(at)
    writers.write(writers.embeddings(loaded, ids, sides, time_of_query), output, None)


def _explain_untrained(run: Any, notes: Any) -> None:
    """Suggest --refit if an answer has a node without training events and the run is not refitted."""
    from cordgt.inference.predictor import UNTRAINED

    can_refit = run.predictor.model.is_trainable and "refit" not in run.metrics
    if can_refit and any(UNTRAINED in note for note in notes.to_pylist()):
        console.note(
            f'"{UNTRAINED}": the model was not trained on any event of this node, because new nodes and later events '
            "are held out for evaluation. `cordgt train … --refit` also trains a model on all events."
        )
