"""Memory limits and use of this process, where the system tells them. Windows has no ``resource`` module."""

from __future__ import annotations

import sys
from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:
    resource = None


def address_space_limit() -> int | None:
    """Return the limit on address space in bytes (``ulimit -v``); None if there is none."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def peak_memory_bytes() -> int:
    """Return the peak memory of this process so far; 0 if the system does not tell."""
    if resource is None:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
