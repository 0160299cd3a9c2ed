"""Fused kernels for CUDA (Triton). Each has a plain twin in torch operations, in the module that calls it.

Nothing here but this file is imported where there is no CUDA device. The environment variable ``CORDGT_PLAIN=1`` keeps
to the plain twins on a GPU too: to compare the two, or to look for a mistake.
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

PLAIN = "CORDGT_PLAIN"


@cache
def _present() -> bool:
    return find_spec("triton") is not None


def serve(device: torch.device) -> bool:
    """True where fused kernels answer for tensors on this device."""
    return device.type == "cuda" and _present() and not plain_asked()


def plain_asked() -> bool:
    """True where ``CORDGT_PLAIN`` asks for plain torch operations."""
    return os.environ.get(PLAIN, "0") not in ("", "0")


@contextmanager
def plainly() -> Iterator[None]:
    """Plain torch operations within."""
    before = os.environ.get(PLAIN)
    os.environ[PLAIN] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLAIN]
        else:
            os.environ[PLAIN] = before


def fused(name: str, device: torch.device) -> Any:
    """The kernel module ``cordgt.NAME`` if kernels can run on the device; None if the plain torch path must."""
    return import_module(f"cordgt.{name}") if serve(device) else None
