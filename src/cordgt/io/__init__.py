"""Read events from files, tables and datasets. Start with `readers`; `event_chunks` reads large files in chunks."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {"as_stream": "convert", "read_events": "readers"}


def __getattr__(name: str) -> Any:
    """Import on first use, because the modules of this package import each other."""
    if name not in _HOME:
        raise AttributeError(f"module 'cordgt.io' has no attribute '{name}'")
    return getattr(importlib.import_module(f"cordgt.io.{_HOME[name]}"), name)
