"""`cordgt similar`: the nodes most like a node."""

from __future__ import annotations

from typing import Annotated, Any

from cordgt.cli import console
from cordgt.cli.loading import open_run
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
def similar(
    run: RunDir,
    columns: dict[str, Any],
    node: Annotated[list[str], option("ID", "The node to compare with; may be repeated.")],
    side: Annotated[
        str | None, option("src|dst", "Whether the node is a source or a destination, if an id could be either.")
    ] = None,
    by: Annotated[
        str, option("WORD", "cosine or bm25 compare the partners of the nodes; embedding compares embeddings.")
    ] = "cosine",
    half_life: Annotated[
        str | None,
        option(
            "TIME",
            "Time after which an event counts half: seconds if the times are dates, else their own unit; or none.",
            show_default="a quarter of the history",
        ),
    ] = None,
    at: At = None,
    top: Annotated[int, option("N", "Number of similar nodes.", min=1)] = 10,
    output: Output = None,
    escape_formulas: EscapeFormulas = False,
    events: Events = None,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Find the nodes most like a node: those that interact with the same partners.

    Example: products that the same customers bought. Later events count more (--half-life).
    """
    import pyarrow as pa

    from cordgt.cli import answers, writers

    writers.check_output(output)
    writers.check_json(json_)
    seconds = _parse_half_life(half_life)
    loaded = open_run(run, device, events, columns)
    rows = []
    for one in answers.parse_ids(loaded, node).to_pylist():
        found = loaded.similar(one, at, top, by=by, half_life=seconds, side=side)
        if not found:
            console.print_note(f"{one}: no node shares a partner with it before the time of the query")
        rows += [(one, i + 1, k.node, k.score, k.shared) for i, k in enumerate(found)]
    id_type = loaded.stream.ids.names.type
    types = {"node": id_type, "rank": pa.int64(), "similar": id_type, "score": pa.float64(), "shared": pa.int64()}
    values = zip(*rows, strict=True) if rows else ((),) * len(types)
    table = pa.table({name: pa.array(x, types[name]) for name, x in zip(types, values, strict=True)})
    shown = ["rank", "similar", "score", "shared"] if len(node) == 1 else None
    writers.write_table(table, output, json_, shown, escape_formulas=escape_formulas)


def _parse_half_life(text: str | None) -> float | None:
    """Return a half-life: a number above 0, infinity for ``none``, None if it is not given."""
    if text is None:
        return None
    try:
        value = float("inf") if text.lower() == "none" else float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise SettingError(f"--half-life {text}: give a number above 0, or none for no decay.")
    return value
