"""`cordgt data fetch`: download a known dataset from its publisher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.options import Json, flag, option


def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known dataset's name: see `cordgt data list`.")],
    local: Annotated[
        Path | None, option("DIR", "Use local files, a folder or an archive, instead of a download.", name="--from")
    ] = None,
    overwrite: Annotated[bool, flag("--again", "Download again and replace the existing dataset.")] = False,
    accept_different: Annotated[
        bool, flag("--accept-different", "Keep the dataset even if counts, labels or checksum differ.")
    ] = False,
    json_: Json = None,
) -> None:
    """Download a known dataset, convert it and check it. Other commands then find it by NAME.

    An interrupted download resumes. Nodes and links must match the published numbers.
    """
    from cordgt.cli import writers
    from cordgt.io.datasets.fetch import fetch

    writers.check_json(json_)
    with console.DownloadBar() as bar:
        result = fetch(name, local=local, overwrite=overwrite, accept_different=accept_different, callbacks=bar)
    console.print_note(f"{result.path}: {'already present' if result.already_present else 'written'}")
    for note in result.notes:
        console.print_note(note)
    facts = result.statistics
    about = {"path": str(result.path), "was_here": result.already_present, "notes": list(result.notes)}
    writers.write_json(facts | about, json_)
    if json_ != "-":
        writers.print_rows([_row(key, facts) for key in ("nodes", "links", "link_attributes", "intensity")], None)
    console.print_note(f"Train on it: cordgt train {name}")


def _row(key: str, facts: dict[str, Any]) -> dict[str, Any]:
    values = {"here": facts[key], "published": facts["published"][key]}
    return {"": key.replace("_", " ")} | {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in values.items()}
