"""Commands that inspect data: list, describe."""

from __future__ import annotations

from typing import Any

from cordgt.cli.options import Data, Json, add_column_options


def data_list(json_: Json = None) -> None:
    """List the datasets known by name, and where they are."""
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
    writers.print_rows(rows, json_)


@add_column_options()
def data_describe(data: Data, columns: dict[str, Any], json_: Json = None) -> None:
    """Describe DATA, and the assumptions made in reading it."""
    from cordgt.cli import writers
    from cordgt.events.describe import describe, describe_for_display
    from cordgt.io.datasets import registry

    writers.check_json(json_)
    stream = registry.load_dataset(data, **columns)
    if json_ is not None:
        writers.write_json(describe(stream), json_)
    if json_ != "-":
        writers.print_facts(describe_for_display(stream), None)  # the notes are among them
