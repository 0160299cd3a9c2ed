"""Stores when things go wrong: cut off at the worst moment, written by several at once, grown since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt import store_build
from cordgt.conversion import append_to, convert_to_store
from cordgt.events import EventStream, TimeAxis
from cordgt.store import ABOUT, open_store


class Cut(BaseException):
    """As a kill would: nothing catches it."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def stream(n: int = 60, *, seed: int = 0, start: int = 0, nodes: int = 9, **columns: Any) -> EventStream:
    """Ties, repeated pairs and self-loops."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, nodes, (2, n))
    t = start + draw.choice([0, 1, 3], n).cumsum()
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name="log", **columns)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return convert_to_store(stream(), tmp_path / "log.store").path


@pytest.fixture
def cut_before_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Whoever replaces ``store.json`` of an old store by that of a new one is cut off there."""
    replace = os.replace

    def cut(source: Any, target: Any) -> None:
        if Path(source).name == ABOUT:
            raise Cut
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store_build.os, "replace", cut)
        yield patch


# -------------------- cut off


def test_a_merge_cut_off_at_the_end_is_made_anew(made: Path, cut_before_the_end: pytest.MonkeyPatch) -> None:
    """What had been moved already is swept away by the second try, which must not count on it."""
    late = stream(5, seed=1, start=3)
    with pytest.raises(Cut):
        append_to(made, late, late="merge")
    cut_before_the_end.undo()
    open_store(made).check()
    append_to(made, late, late="merge")
    found = open_store(made)
    found.check()
    assert found.n_events == 65
    assert sorted(p.name for p in made.parent.iterdir()) == ["log.store"]


@pytest.mark.parametrize("written_since", [False, True])
def test_a_replacement_cut_off_at_the_end_goes_on(
    written_since: bool, made: Path, cut_before_the_end: pytest.MonkeyPatch
) -> None:
    other = stream(40, seed=2)
    with pytest.raises(Cut):
        convert_to_store(other, made, replace=True)
    cut_before_the_end.undo()
    if written_since:
        append_to(made, stream(5, seed=1, start=1000))
    convert_to_store(other, made, replace=True)
    found = open_store(made)
    found.check()
    assert found.n_events == 40


def test_a_replacement_cut_off_after_the_end_begins_anew(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr("cordgt.store.Store.sweep", cut)
        convert_to_store(stream(40, seed=2), made, replace=True)
    assert convert_to_store(stream(40, seed=2), made, replace=True).n_events == 40
