"""Commands that look at data: list, describe."""

from __future__ import annotations

from cordgt.cli.options import (
    Data,
    Dst,
    Features,
    Ids,
    Json,
    Label,
    NodeFeatures,
    Src,
    Time,
)
from cordgt.cli.parts import given_columns


def data_list(json_: Json = None) -> None:
    """Datasets known by name, and where they are."""
    from cordgt.cli import answers
    from cordgt.datasets import by_name

    answers.check_json(json_)
    rows = [
        {
            "name": k.name,
            "nodes": k.nodes,
            "events": k.links,
            "found": "generated" if k.is_generated else k.path and str(k.path),
        }
        for k in by_name.list_datasets()
    ]
    answers.show(rows, json_)


def data_describe(
    data: Data,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """What is in DATA, and what was assumed in reading it."""
    from cordgt.cli import answers
    from cordgt.datasets import by_name
    from cordgt.events.describe import describe

    answers.check_json(json_)
    stream = by_name.load(data, **given_columns(src, dst, time, label, features, ids, node_features))
    answers.show_facts(describe(stream), json_)  # the notes are among them
