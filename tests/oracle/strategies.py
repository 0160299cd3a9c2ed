"""Random streams with edge cases: tied times, repeated pairs, self-loops, isolated nodes, masked events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from .slow import History

KINDS = ("int", "float", "date")


@dataclass(frozen=True)
class Stream:
    """A stream small enough to print when a test fails."""

    src: list[int]
    dst: list[int]
    t: list[int] | list[float]
    n_nodes: int
    keep: list[bool] | None

    @property
    def n_events(self) -> int:
        return len(self.src)

    @property
    def elapsed(self) -> list[float]:
        return [float(t - self.t[0]) for t in self.t]

    @property
    def history(self) -> History:
        keep = [True] * self.n_events if self.keep is None else self.keep
        return History(self.src, self.dst, self.elapsed, keep)

    @property
    def times(self) -> np.ndarray:
        """The times as a stream holds them: int64 or float64."""
        return np.array(self.t, dtype=np.float64 if any(isinstance(t, float) for t in self.t) else np.int64)

    def first(self, cut: int) -> Stream:
        """The first ``cut`` events only."""
        return Stream(self.src[:cut], self.dst[:cut], self.t[:cut], self.n_nodes, self.keep and self.keep[:cut])


def _times(draw: st.DrawFn, n_events: int, kind: str) -> list[int] | list[float]:
    steps = draw(st.lists(st.sampled_from((0, 0, 0, 1, 1, 2, 7)), min_size=n_events, max_size=n_events))
    unit = {"int": 1, "float": 0.1, "date": 3_600_000_001}[kind]
    start = draw(
        st.sampled_from({"int": (0, -5, 40), "float": (0.0, -2.5, 1e9), "date": (1_600_000_000_000_000,)}[kind])
    )
    times, now = [], start
    for i, step in enumerate(steps):
        now = now + step * unit if i else start
        times.append(now)
    return times


@st.composite
def streams(draw: st.DrawFn, *, min_events: int = 1, max_events: int = 32, filtered: bool | None = None) -> Stream:
    """A stream of few nodes, so that pairs repeat, with more ids than are used, so that some nodes are isolated.

    ``filtered``: whether some events are masked; None: random.
    """
    n_events = draw(st.integers(min_events, max_events))
    n_nodes = draw(st.integers(1, 9))
    in_use = draw(st.lists(st.integers(0, n_nodes - 1), min_size=1, max_size=6, unique=True))
    endpoints = st.lists(st.sampled_from(in_use), min_size=n_events, max_size=n_events)
    src, dst = draw(endpoints), draw(endpoints)
    t = _times(draw, n_events, draw(st.sampled_from(KINDS)))
    has_mask = draw(st.booleans()) if filtered is None else filtered
    keep = draw(st.lists(st.booleans(), min_size=n_events, max_size=n_events)) if has_mask else None
    return Stream(src, dst, t, n_nodes, keep)


fanouts = st.one_of(
    st.tuples(st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)
seeds = st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1))
epochs = st.integers(0, 5)
samplings = st.sampled_from(("uniform", "recent", "mixed"))


def nodes(stream: Stream, *, padding: bool = True) -> st.SearchStrategy[int]:
    """Any valid id: known nodes, new nodes (past the last known one) and optionally padding."""
    return st.integers(-1 if padding else 0, stream.n_nodes + 2)


def cuts(stream: Stream) -> st.SearchStrategy[int]:
    return st.integers(0, stream.n_events)
