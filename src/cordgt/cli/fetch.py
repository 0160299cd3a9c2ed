"""`cordgt data fetch`: get a known dataset from its publisher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.options import Json, flag


def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known dataset's name: see `cordgt data list`.")],
    local: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Use these files instead: a folder or an archive."),
    ] = None,
    overwrite: Annotated[bool, flag("--again", "Fetch again and replace the dataset that is there.")] = False,
    accept_different: Annotated[
        bool, flag("--accept-different", "Keep the dataset even if counts, labels or checksum differ.")
    ] = False,
    json_: Json = None,
) -> None:
    """Download a known dataset, convert it, check it, and put it where NAME finds it.

    An interrupted download resumes. Nodes and links must match the published numbers.
    """
    from cordgt.cli import writers
    from cordgt.io.datasets.fetch import fetch

    writers.check_json(json_)
    with console.DownloadBar() as bar:
        result = fetch(name, local=local, overwrite=overwrite, accept_different=accept_different, callbacks=bar)
    console.note(f"{result.path}: {'was here already' if result.was_here else 'written'}")
    for note in result.notes:
        console.note(note)
    facts = result.facts
    if json_ is not None:
        about = {"path": str(result.path), "was_here": result.was_here, "notes": list(result.notes)}
        writers.write_json(facts | about, json_)
    if json_ != "-":
        writers.show([_row(key, facts) for key in ("nodes", "links", "link_attributes", "intensity")], None)
    console.note(f"Train on it: cordgt train {name}")


def _row(key: str, facts: dict[str, Any]) -> dict[str, Any]:
    values = {"here": facts[key], "published": facts["published"][key]}
    return {"": key.replace("_", " ")} | {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in values.items()}
