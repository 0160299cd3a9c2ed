"""`cordgt data fetch`: known datasets from where they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.options import Json, flag


def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known dataset's name: see `cordgt data list`.")],
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Files fetched by hand: a folder of them, or an archive."),
    ] = None,
    again: Annotated[bool, flag("--again", "Replace what is there.")] = False,
    accept_different: Annotated[
        bool, flag("--accept-different", "Keep it though its counts, labels or checksum are not as expected.")
    ] = False,
    json_: Json = None,
) -> None:
    """Download a known dataset, convert it, check it, and put it where NAME finds it.

    What was cut off goes on where it was. Nodes and links must be as published; intensity is shown beside.
    """
    from cordgt.cli import answers
    from cordgt.datasets.fetch import fetch

    answers.check_json(json_)
    with console.Receiving() as bar:
        found = fetch(name, given=given, again=again, accept_different=accept_different, progress=bar.tell)
    console.note(f"{found.path}: {'was here already' if found.was_here else 'written'}")
    for text in found.notes:
        console.note(text)
    facts = found.facts
    if json_ is not None:
        answers.write_json(
            {**facts, "path": str(found.path), "was_here": found.was_here, "notes": list(found.notes)}, json_
        )
    if json_ != "-":
        answers.show([_row(key, facts) for key in ("nodes", "links", "link_attributes", "intensity")], None)
    console.note(f"Train on it: cordgt train {name}")


def _row(key: str, facts: dict[str, Any]) -> dict[str, Any]:
    here, there = facts[key], facts["published"][key]
    written = [f"{v:.3g}" if isinstance(v, float) else v for v in (here, there)]
    return {"": key.replace("_", " "), "here": written[0], "published": written[1]}
