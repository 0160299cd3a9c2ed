"""Commands that look at data: list, describe."""

from __future__ import annotations

from cordgt.cli.loading import given_columns
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


def data_list(json_: Json = None) -> None:
    """Datasets known by name, and where they are."""
    from cordgt.cli import writers
    from cordgt.io.datasets import registry

    writers.check_json(json_)
    rows = [
        {
            "name": k.name,
            "nodes": k.nodes,
            "events": k.links,
            "found": "generated" if k.is_generated else k.path and str(k.path),
        }
        for k in registry.list_datasets()
    ]
    writers.show(rows, json_)


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
    from cordgt.cli import writers
    from cordgt.events.describe import describe
    from cordgt.io.datasets import registry

    writers.check_json(json_)
    stream = registry.load(data, **given_columns(src, dst, time, label, features, ids, node_features))
    writers.show_facts(describe(stream), json_)  # the notes are among them
