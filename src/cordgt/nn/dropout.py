"""Keys of counter-based dropout on the CPU: a hash of (key, element) that both passes recompute.

They come from torch's generator, or from a generator per thread (`dropout_seed`), so that the results of parallel
threads do not depend on their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_thread = threading.local()  # .generator: source of this thread's dropout keys, if set


@contextmanager
def dropout_seed(seed: int) -> Iterator[None]:
    """Seed the dropout of this thread within the context."""
    _thread.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = None


def new_key() -> int:
    """Return a random key from this thread's generator, or from torch's."""
    return int(torch.randint(2**31 - 1, (), generator=getattr(_thread, "generator", None)))
