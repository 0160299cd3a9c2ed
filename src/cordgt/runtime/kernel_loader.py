"""Choose between fused CUDA kernels (Triton) and plain torch operations.

Every kernel has a torch reference in the module that calls it. Kernel modules are imported only on a CUDA device. The
environment variable ``CORDGT_PLAIN=1`` forces plain torch operations, to compare both or to debug.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

PLAIN_VARIABLE = "CORDGT_PLAIN"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def kernels_available(device: torch.device) -> bool:
    """Return whether fused kernels are used for tensors on this device."""
    return device.type == "cuda" and _has_triton() and not is_plain_forced()


def is_plain_forced() -> bool:
    """Return whether ``CORDGT_PLAIN`` forces plain torch operations."""
    return os.environ.get(PLAIN_VARIABLE, "0") not in ("", "0")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Force plain torch operations within the block."""
    previous = os.environ.get(PLAIN_VARIABLE)
    os.environ[PLAIN_VARIABLE] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[PLAIN_VARIABLE]
        else:
            os.environ[PLAIN_VARIABLE] = previous


def load_kernels(name: str, device: torch.device) -> Any:
    """Import the kernel module ``cordgt.NAME``; None if the device needs the plain torch path."""
    return import_module(f"cordgt.{name}") if kernels_available(device) else None
