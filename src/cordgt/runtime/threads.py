"""The number of compute threads, shared by torch and numba; and a parallel map over single-threaded workers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import numba
import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def pin_num_threads() -> int:
    """Make numba and torch use torch's number of threads from now on, and return it.

    numba and torch share one OpenMP runtime: numba's first parallel loop sets the number of threads of both to the
    number of cores, whatever `OMP_NUM_THREADS` or `torch.set_num_threads` said. From then on sums would be split
    differently, which changes the last bits of a training. So numba starts here, and torch's number is restored.
    A smaller number set for numba is kept.
    """
    n = torch.get_num_threads()
    numba.set_num_threads(min(n, numba.get_num_threads()))
    torch.set_num_threads(n)
    return n


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread within the block."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n)


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in order, computed by as many workers as torch has threads.

    Each worker uses one thread, so none waits for another after every operation. The calling thread produces the items,
    a few ahead. A result does not depend on the number of workers.
    """
    n = torch.get_num_threads()
    if n == 1:
        yield from map(work, items)
        return
    pool = _thread_pool(n, os.getpid())
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > n:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # after an error no worker continues or holds memory
        for future in pending:
            future.cancel()
        wait(pending)


@lru_cache
def _thread_pool(n: int, _pid: int) -> ThreadPoolExecutor:
    """Start ``n`` workers that compute with one thread each. ``_pid``: a forked process needs workers of its own.

    They start now, because each calls `torch.set_num_threads` and the caller's number must be set last.
    """
    pool = ThreadPoolExecutor(n, thread_name_prefix="cordgt-worker", initializer=_use_one_thread)
    barrier = Barrier(n)
    try:
        list(pool.map(lambda _: barrier.wait(), range(n)))
    except BaseException:  # a thread did not start: the others would wait for it forever
        barrier.abort()
        pool.shutdown(wait=False)
        raise
    finally:
        torch.set_num_threads(n)
    return pool


def _use_one_thread() -> None:
    """Limit the current thread to one compute thread.

    torch sets a thread's number to the global one when the thread first reads it, so read it before setting it.
    """
    torch.get_num_threads()
    torch.set_num_threads(1)
