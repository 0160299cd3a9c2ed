"""CorDGT: predict who interacts with whom next, from a log of timestamped interactions."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

# Threads that wait by spinning stall each other for seconds where the machine is shared. Read when OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    __version__ = version("cordgt")
except PackageNotFoundError:  # run from source
    __version__ = "0.1.0"

if TYPE_CHECKING:
    from cordgt.analysis.exporters import export, register_exporter
    from cordgt.analysis.report.run_report import write_report
    from cordgt.callbacks import Callback
    from cordgt.errors import CordgtError, DataError, RunError, SettingError
    from cordgt.events.stream import EventStream
    from cordgt.inference.run import Run
    from cordgt.io.convert import append_to, convert_to_store
    from cordgt.io.datasets.registry import load_dataset, register_dataset
    from cordgt.io.datasets.synthetic import synthetic_stream
    from cordgt.io.readers import read_events
    from cordgt.models import register_model
    from cordgt.models.base import LinkModel
    from cordgt.plugins import load_plugin
    from cordgt.tasks.link import LinkTask
    from cordgt.tasks.metrics import register_metric
    from cordgt.tasks.negatives import register_negatives
    from cordgt.tasks.protocol import Protocol
    from cordgt.workflows.train import train

_HOME = {
    "Callback": "callbacks",
    "CordgtError": "errors",
    "DataError": "errors",
    "EventStream": "events.stream",
    "LinkModel": "models.base",
    "LinkTask": "tasks.link",
    "Protocol": "tasks.protocol",
    "Run": "inference.run",
    "RunError": "errors",
    "SettingError": "errors",
    "append_to": "io.convert",
    "convert_to_store": "io.convert",
    "export": "analysis.exporters",
    "load_dataset": "io.datasets.registry",
    "load_plugin": "plugins",
    "read_events": "io.readers",
    "register_dataset": "io.datasets.registry",
    "register_exporter": "analysis.exporters",
    "register_metric": "tasks.metrics",
    "register_model": "models",
    "register_negatives": "tasks.negatives",
    "synthetic_stream": "io.datasets.synthetic",
    "train": "workflows.train",
    "write_report": "analysis.report.run_report",
}

SUBPACKAGES = ("nn", "models")  # ``cordgt.nn`` works after ``import cordgt``

__all__ = [
    "Callback",
    "CordgtError",
    "DataError",
    "EventStream",
    "LinkModel",
    "LinkTask",
    "Protocol",
    "Run",
    "RunError",
    "SettingError",
    "__version__",
    "append_to",
    "convert_to_store",
    "export",
    "load_dataset",
    "load_plugin",
    "read_events",
    "register_dataset",
    "register_exporter",
    "register_metric",
    "register_model",
    "register_negatives",
    "synthetic_stream",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``cordgt --help`` does not wait for torch."""
    if name in SUBPACKAGES:
        return importlib.import_module(f"cordgt.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'cordgt' has no attribute '{name}'")
    return getattr(importlib.import_module(f"cordgt.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
