"""CorDGT: who meets whom next, from a log of timestamped interactions."""

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
    from cordgt.api import Run, train
    from cordgt.callbacks import Callback
    from cordgt.conversion.convert import append_to, convert_to_store
    from cordgt.datasets.synthetic import synthetic_stream
    from cordgt.errors import CordgtError, DataError, RunError, SettingError
    from cordgt.events.stream import EventStream
    from cordgt.reading.readers import read_events

_HOME = {
    "Callback": "callbacks",
    "CordgtError": "errors",
    "DataError": "errors",
    "EventStream": "events.stream",
    "Run": "api",
    "RunError": "errors",
    "SettingError": "errors",
    "append_to": "conversion.convert",
    "convert_to_store": "conversion.convert",
    "read_events": "reading.readers",
    "synthetic_stream": "datasets.synthetic",
    "train": "api",
}

__all__ = [
    "Callback",
    "CordgtError",
    "DataError",
    "EventStream",
    "Run",
    "RunError",
    "SettingError",
    "__version__",
    "append_to",
    "convert_to_store",
    "read_events",
    "synthetic_stream",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``cordgt --help`` does not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'cordgt' has no attribute '{name}'")
    return getattr(importlib.import_module(f"cordgt.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """What is offered, for those who look."""
    return list(__all__)
