"""Where a result comes from: code, machine, data, and the command that reproduces it."""

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
from cordgt.experiments.cells import Cell, flatten_settings, format_value, make_cell
from cordgt.io.datasets import registry
from cordgt.models.presets import published_settings
from cordgt.training.run_folder import fingerprint
from cordgt.training.settings import make_settings

ROOT = Path(cordgt.__file__).parent
# The experiment that makes cells of each kind; for "link" the one that supports all models.
EXPERIMENT_BY_KIND = {
    "link": "link-ap",
    "node": "node-classification",
    "heatmap": "heatmap",
    "growth": "complexity",
    "hard": "beyond",
    "ranking": "ranking",
    "anchors": "anchors",
    "partners": "new-partners",
    "retrieval": "retrieval",
    "calibration": "calibration",
    "convergence": "time-to-accuracy",
}


@cache
def code_version() -> dict[str, str | None]:
    """Return version, hash of the source, and git commit (None outside a repository)."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(path.read_bytes())
    return {"version": cordgt.__version__, "source": digest.hexdigest()[:12], "commit": _commit()}


def _commit() -> str | None:
    try:
        output = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.strip() or None if output.returncode == 0 else None


def machine_name(device: torch.device) -> str:
    """Return the name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def stream_metadata(name: str, stream: EventStream) -> dict[str, Any]:
    """Describe a cell's stream, so that a report does not need the data."""
    return {
        "name": stream.name,
        "nodes": stream.n_nodes,
        "events": stream.n_events,
        "edge_features": stream.edge_dim,
        "node_features": stream.node_dim,
        "fingerprint": fingerprint(stream),
        "differs": registry.describe_difference(name, stream),
    }


def cell_command(cell: Cell) -> str:
    """Return the command that reproduces a cell's metrics.

    `cordgt train` for the evaluation at the end of a training, `cordgt reproduce` of this one cell otherwise; the
    latter needs an output folder in which the cell is not finished.
    """
    if cell.kind == "link" and not cell.quick:
        defaults = make_settings(cell.model, published_settings(cell.data, cell.model))
        words = ["cordgt", "train", cell.data, "--model", cell.model, "--seed", str(cell.seed)]
    else:
        defaults = make_cell(cell.data, cell.model, cell.seed, quick=cell.quick).settings
        words = ["cordgt", "reproduce", EXPERIMENT_BY_KIND[cell.kind], "--datasets", cell.data, "--models", cell.model]
        words += ["--seeds", f"{cell.seed},"] + (["--quick"] if cell.quick else [])
    default_values = flatten_settings(defaults)
    for key, value in flatten_settings(cell.settings).items():
        if default_values[key] != value:
            words += ["--set", f"{key}={format_value(value, ',')}"]
    return shlex.join(words)
