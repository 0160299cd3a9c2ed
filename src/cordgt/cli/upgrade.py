"""`cordgt upgrade`: a copy of an older run in the current format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cordgt.cli import console
from cordgt.cli.options import RunDir, option


def upgrade(run: RunDir, out: Annotated[Path, option("DIR", "Folder of the copy.")]) -> None:
    """Copy a finished run of an older version of cordgt into the current format. RUN itself is not changed."""
    from cordgt.workflows.upgrade import upgrade_run

    written = upgrade_run(run, out)
    console.print_note(f"{written}: written. `cordgt report {written}` writes its report.")
