"""How many threads compute: torch's number, whoever asks first; and work that each of them does by itself."""

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


def keep_threads() -> int:
    """The number of threads that torch was given, for torch and for the compiled loops from now on.

    numba and torch share one OpenMP: numba's first parallel loop sets the number of threads of both to its own, the
    number of cores, whatever `OMP_NUM_THREADS` or `torch.set_num_threads` said. Sums would then be split otherwise from
    that moment on, and the last bits of a training would depend on it. So numba starts here, and torch's number is put
    back. A smaller number that numba was given stays.
    """
    n = torch.get_num_threads()
    numba.set_num_threads(min(n, numba.get_num_threads()))
    torch.set_num_threads(n)
    return n


@contextmanager
def alone() -> Iterator[None]:
    """One thread computes, as long as this lasts."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n)


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What ``work`` makes of each item, in their order: as many at once as torch has threads, each with one alone.

    Pieces worked off apart wait for nobody, where operations shared among threads wait for the slowest at every end.
    Items are made by the thread that asks, a few ahead. What a piece becomes does not depend on how many there are.
    """
    n = torch.get_num_threads()
    if n == 1:
        yield from map(work, items)
        return
    crew = _crew(n, os.getpid())
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(crew.submit(work, item))
            if len(waiting) > n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # after an error nothing goes on unseen, or holds memory that is asked for
        for left in waiting:
            left.cancel()
        wait(waiting)


@lru_cache
def _crew(n: int, _process: int) -> ThreadPoolExecutor:
    """Threads that compute alone, of this process: one that was forked has none of them.

    They start now: each tells torch so, and the last word on it must be the caller's.
    """
    crew = ThreadPoolExecutor(n, thread_name_prefix="cordgt-computes", initializer=_compute_alone)
    together = Barrier(n)
    try:
        list(crew.map(lambda _: together.wait(), range(n)))
    except BaseException:  # a thread that could not be started: the others would wait for it for ever
        together.abort()
        crew.shutdown(wait=False)
        raise
    finally:
        torch.set_num_threads(n)
    return crew


def _compute_alone() -> None:
    """Give this thread one thread to compute with. torch gives a thread the common number when it first asks for it,
    whatever was set before: so it asks now."""
    torch.get_num_threads()
    torch.set_num_threads(1)
