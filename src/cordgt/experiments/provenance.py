"""Where a figure comes from: code, machine, data and the command that gives it again."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import cordgt
from cordgt.events.stream import EventStream
from cordgt.experiments.cells import Cell, flat, make_cell
from cordgt.io.datasets import registry
from cordgt.models.presets import paper_settings
from cordgt.training.run_folder import fingerprint
from cordgt.training.settings import make

ROOT = Path(cordgt.__file__).parent
# What `cordgt reproduce` makes cells of each kind for; of those that are trained and no more, the one with all models.
EXPERIMENTS = {
    "link": "link-ap",
    "node": "node-classification",
    "heatmap": "heatmap",
    "growth": "complexity",
    "hard": "beyond",
    "ranking": "ranking",
}


@cache
def code() -> dict[str, str | None]:
    """The version, a hash of the source, and the commit where it lies in a repository (None elsewhere)."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(path.read_bytes())
    return {"version": cordgt.__version__, "source": digest.hexdigest()[:12], "commit": _commit()}


def _commit() -> str | None:
    try:
        said = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None if said.returncode == 0 else None


def machine(device: torch.device) -> str:
    """The name of what computed."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def about_stream(name: str, stream: EventStream) -> dict[str, Any]:
    """What a cell was made of, so that a table can say so where the data is not at hand."""
    return {
        "name": stream.name,
        "nodes": stream.n_nodes,
        "events": stream.n_events,
        "edge_features": stream.edge_dim,
        "node_features": stream.node_dim,
        "fingerprint": fingerprint(stream),
        "differs": registry.describe_difference(name, stream),
    }


def command(cell: Cell) -> str:
    """The command that gives a cell's figures again.

    `cordgt train` where they are those a training ends with; else `cordgt reproduce` of this one cell, into a folder
    where it is not finished.
    """
    if cell.kind == "link" and not cell.quick:
        usual = make(cell.model, paper_settings(cell.data, cell.model))
        words = ["cordgt", "train", cell.data, "--model", cell.model, "--seed", str(cell.seed)]
    else:
        usual = make_cell(cell.data, cell.model, cell.seed, quick=cell.quick).settings
        words = ["cordgt", "reproduce", EXPERIMENTS[cell.kind], "--datasets", cell.data, "--models", cell.model]
        words += ["--seeds", f"{cell.seed},", *["--quick"] * cell.quick]
    return shlex.join([*words, *_assignments(flat(cell.settings), flat(usual))])


def _assignments(settings: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """``--set`` for whatever is not as usual."""
    words = []
    for key, value in settings.items():
        if usual[key] != value:
            words += ["--set", f"{key}={','.join(map(str, value)) if isinstance(value, list) else _word(value)}"]
    return words


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
