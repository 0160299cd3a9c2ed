"""Commands that ask a trained model: predict, recommend, embed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
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
from cordgt.cli.parts import answering, columns_of_questions, given_columns, open_run
from cordgt.errors import SettingError


def predict(
    run: RunDir,
    pairs: Annotated[Path | None, typer.Option(metavar="FILE", help="The questions: src,dst[,time].")] = None,
    source: Annotated[str | None, typer.Option(metavar="ID", help="Of a single pair, in place of --pairs.")] = None,
    destination: Annotated[str | None, typer.Option(metavar="ID", help="Whom that source may meet.")] = None,
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

    A score lies between 0 and 1 and compares with random partners; it is not how often they will meet.
    Column options are for the pairs, and for the events where both are given and have these columns.
    """
    import numpy as np

    from cordgt.cli import answers
    from cordgt.reading.readers import read_pairs

    single = source is not None and destination is not None
    if single == (pairs is not None) or (source is None) != (destination is None):
        raise SettingError("Give either --pairs FILE, or --source ID and --destination ID.")
    if pairs is None and events is None and given_columns(src, dst, time, label, features, None, node_features):
        raise SettingError("--src, --dst and --time name columns of a file, and no file was given.")
    answers.check_output(output)
    answers.check_json(json_)
    asked = given_columns(src, dst, time, label, features, None, node_features)
    loaded = open_run(run, device, events, asked)
    if pairs is None:
        sources, destinations = (answers.written_ids(loaded, [str(one)]) for one in (source, destination))
        times = None if at is None else np.array([loaded.stream.time.parse(at)])
    else:
        columns = columns_of_questions(loaded, pairs, given_columns(src, dst, time), beside_events=events is not None)
        sources, destinations, times = read_pairs(pairs, **columns, axis=loaded.stream.time)
        if at is not None:
            if times is not None:
                raise SettingError(f"--at: {pairs} has times of its own. Leave one of the two out.")
            times = np.full(len(sources), loaded.stream.time.parse(at))
    if loaded.oracle.model.learns_ranking:
        console.note("This model learnt to rank: compare scores of one source's pairs, not those of different sources.")
    with answering(len(sources)) as progress:
        table = answers.scores(loaded, sources, destinations, times, progress)
    answers.write(table, output, json_)
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
    """The partners a node is most likely to meet next.

    Partners are destinations of the history, never the node itself.
    """
    from cordgt.cli import answers
    from cordgt.reading.readers import read_ids

    if (source is None) == (sources is None):
        raise SettingError("Give either --source ID or --sources FILE.")
    answers.check_output(output)
    answers.check_json(json_)
    loaded = open_run(run, device, events, given_columns(src, dst, time, label, features, None, node_features))
    asked: list[Any] = [source]
    if sources is not None:
        columns = columns_of_questions(loaded, sources, given_columns(src), beside_events=events is not None)
        asked = read_ids(sources, column=columns.get("src")).to_pylist()
    moment = None if at is None else loaded.stream.time.parse(at)
    with answering(len(asked)) as progress:
        table = answers.recommendations(loaded, asked, moment, top, new_only, progress)
    answers.write(table, output, json_, shown=["rank", "node", "score", "met", "note"] if source is not None else None)
    _explain_untrained(loaded, table.column("src_note"))


def embed(
    run: RunDir,
    output: Annotated[Path, typer.Option(metavar="FILE", help=f"Where to write the embeddings: {FILE_ENDINGS}.")],
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="every node of the history",
            help="The nodes, an id a row; with a column `side` (src or dst) where an id could be either.",
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
    """A vector for each node at a time."""
    from cordgt.cli import answers
    from cordgt.reading.columns import those_named_in
    from cordgt.reading.readers import read_ids

    answers.check_output(output)
    loaded = open_run(run, device, events, given_columns(src, dst, time, label, features, None, node_features))
    asked = sides = None
    if nodes is not None:
        columns = columns_of_questions(loaded, nodes, given_columns(src), beside_events=events is not None)
        asked = read_ids(nodes, column=columns.get("src"))
        if nodes.is_file() and those_named_in(nodes, {"src": "side"}):
            sides = read_ids(nodes, column="side").to_pylist()
    moment = None if at is None else loaded.stream.time.parse(at)
    answers.write(answers.embeddings(loaded, asked, sides, moment), output, None)


def _explain_untrained(run: Any, notes: Any) -> None:
    """Say what to do about nodes that training has not seen, if a question was about one and something can be done."""
    from cordgt.predict import UNTRAINED

    can_be_mended = run.oracle.model.is_trainable and "refit" not in run.metrics
    if can_be_mended and any(UNTRAINED in note for note in notes.to_pylist()):
        console.note(
            f'"{UNTRAINED}": none of its events were trained on, so that the model could be measured on new nodes and '
            "on a later time. `cordgt train … --refit` answers with a model trained on everything."
        )
