"""Ids: numbered by first appearance, found again by number and by text."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cordgt.events.ids import NodeIds

IDS = st.one_of(st.integers(-3, 5), st.sampled_from(["a", "b", "007", "7", "é"]))


def ids_of(src: list, dst: list, *, shared: bool = True) -> NodeIds:
    return NodeIds.empty(shared=shared).extend(src, dst)[0]


def test_mixed_ids_become_text_and_numbers_stay_numbers() -> None:
    assert ids_of([1, "007"], ["a", 7]).names.to_pylist() == ["1", "a", "007", "7"]
    assert ids_of([1], [-2]).names.type == pa.int64()
    big = 2**63 + 5
    assert ids_of([big], [1]).names.to_pylist() == [str(big), "1"]


@given(names=st.lists(IDS, min_size=1, max_size=8), asked=st.lists(IDS, max_size=8))
def test_find_takes_numbers_and_their_text_alike(names: list, asked: list) -> None:
    ids = ids_of(names, names)
    place = {str(name): k for k, name in enumerate(ids.names.to_pylist())}
    assert ids.find(asked, "src").tolist() == [place.get(str(k), -1) for k in asked]


def test_find_by_side_and_what_does_not_convert() -> None:
    ids = ids_of([1, 2], [1, 1], shared=False)
    assert ids.find([1, 2, 3], "src").tolist() == [0, 2, -1]
    assert ids.find(["1", "2"], "dst").tolist() == [1, -1]
    assert ids.find(["01", "x", ""], "src").tolist() == [-1, -1, -1]
    assert ids.find([1.0, 2.5, float("nan"), 1e300], "src").tolist() == [0, -1, -1, -1]
    assert ids.find([None, 1], "src").tolist() == [-1, 0]
    assert ids.find(np.array([1, 2], np.uint64), "src").tolist() == [0, 2]
    assert ids.find([2**64 - 1], "src").tolist() == [-1]
    assert ids.find([True], "src").tolist() == [-1]
    assert ids.find([], "src").tolist() == []
    assert ids.find("1", "dst").tolist() == [1]
    assert ids.find(pa.array([datetime(2024, 1, 1)]), "src").tolist() == [-1]
    assert ids.take([0, -1, 99]).to_pylist() == [1, None, None]


def test_extend_keeps_known_numbers() -> None:
    ids, src, dst = NodeIds.empty(shared=True).extend(["x", "y"], ["y", "z"])
    more, src2, dst2 = ids.extend(["q", "x"], ["y", "p"])
    assert (src.tolist(), dst.tolist()) == ([0, 1], [1, 2])
    assert (src2.tolist(), dst2.tolist()) == ([3, 0], [1, 4])
    assert more.names.to_pylist() == ["x", "y", "z", "q", "p"]
