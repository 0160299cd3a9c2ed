"""NodeIds: numbered by first appearance, encoded from numbers and from text."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cordgt.events.ids import NodeIds

IDS = st.one_of(st.integers(-3, 5), st.sampled_from(["a", "b", "007", "7", "é"]))


def make_ids(src: list, dst: list, *, shared: bool = True) -> NodeIds:
    return NodeIds.empty(shared=shared).extend(src, dst)[0]


def test_mixed_ids_become_text_and_integers_stay_integers() -> None:
    assert make_ids([1, "007"], ["a", 7]).names.to_pylist() == ["1", "a", "007", "7"]
    assert make_ids([1], [-2]).names.type == pa.int64()
    big = 2**63 + 5
    assert make_ids([big], [1]).names.to_pylist() == [str(big), "1"]


@given(names=st.lists(IDS, min_size=1, max_size=8), queries=st.lists(IDS, max_size=8))
def test_encode_treats_numbers_and_their_text_alike(names: list, queries: list) -> None:
    ids = make_ids(names, names)
    index = {str(name): k for k, name in enumerate(ids.names.to_pylist())}
    assert ids.encode(queries, "src").tolist() == [index.get(str(k), -1) for k in queries]


def test_encode_by_side_and_unconvertible_values() -> None:
    ids = make_ids([1, 2], [1, 1], shared=False)
    assert ids.encode([1, 2, 3], "src").tolist() == [0, 2, -1]
    assert ids.encode(["1", "2"], "dst").tolist() == [1, -1]
    assert ids.encode(["01", "x", ""], "src").tolist() == [-1, -1, -1]
    assert ids.encode([1.0, 2.5, float("nan"), 1e300], "src").tolist() == [0, -1, -1, -1]
    assert ids.encode([None, 1], "src").tolist() == [-1, 0]
    assert ids.encode(np.array([1, 2], np.uint64), "src").tolist() == [0, 2]
    assert ids.encode([2**64 - 1], "src").tolist() == [-1]
    assert ids.encode([True], "src").tolist() == [-1]
    assert ids.encode([], "src").tolist() == []
    assert ids.encode("1", "dst").tolist() == [1]
    assert ids.encode(pa.array([datetime(2024, 1, 1)]), "src").tolist() == [-1]
    assert ids.decode([0, -1, 99]).to_pylist() == [1, None, None]


def test_extend_keeps_known_numbers() -> None:
    ids, src, dst = NodeIds.empty(shared=True).extend(["x", "y"], ["y", "z"])
    more, src2, dst2 = ids.extend(["q", "x"], ["y", "p"])
    assert (src.tolist(), dst.tolist()) == ([0, 1], [1, 2])
    assert (src2.tolist(), dst2.tolist()) == ([3, 0], [1, 4])
    assert more.names.to_pylist() == ["x", "y", "z", "q", "p"]
