"""EventStream: compared with a slow version; append, save and load, bad columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import DataError, RunError
from cordgt.events.stream import EventStream, TimeAxis

EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-2, 6)), min_size=1, max_size=30)


def number_by_loops(events: list[tuple[object, object, float]], shared: bool) -> tuple[list, list, list, list]:
    """Return src, dst, t and the names in order of first appearance."""
    ordered = sorted(events, key=lambda event: event[2])
    numbers: dict[object, int] = {}
    src, dst = [], []
    for u, v, _ in ordered:
        a, b = (u, v) if shared else (("src", u), ("dst", v))
        src.append(numbers.setdefault(a, len(numbers)))
        dst.append(numbers.setdefault(b, len(numbers)))
    names = list(numbers) if shared else [name for _, name in numbers]
    return src, dst, [t for _, _, t in ordered], names


def make_stream(events: list[tuple[object, object, float]], **options: object) -> EventStream:
    src, dst, t = (list(column) for column in zip(*events, strict=True))
    return EventStream.from_columns(src, dst, np.array(t), **options)


def assert_same(a: EventStream, b: EventStream) -> None:
    """Assert that all arrays, ids and the time axis are equal."""
    for name in ("src", "dst", "t", "edge_x", "node_x", "label"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, err_msg=name)
    assert a.ids.names.equals(b.ids.names)
    assert (a.ids.side is None) == (b.ids.side is None)
    if a.ids.side is not None:
        np.testing.assert_array_equal(a.ids.side, b.ids.side)
    assert a.time == b.time


TEN = [
    ("b", "a", 4), ("a", "c", 1), ("c", "c", 1), ("a", "b", 2), ("b", "a", 2),
    ("d", "a", 9), ("a", "c", 4), ("e", "b", 7), ("b", "e", 7), ("a", "b", 7),
]  # fmt: skip


@pytest.mark.parametrize("shared", [True, False])
@given(events=EVENTS)
def test_nodes_are_numbered_by_first_appearance(events: list, shared: bool) -> None:
    stream = make_stream(events, shared_ids=shared)
    src, dst, t, names = number_by_loops(events, shared)
    assert stream.src.tolist() == src
    assert stream.dst.tolist() == dst
    assert stream.t.tolist() == t
    assert stream.ids.names.to_pylist() == names
    assert stream.ids.decode(stream.src).to_pylist() == [u for u, _, _ in sorted(events, key=lambda e: e[2])]
    assert stream.tie_start.tolist() == [t.index(k) for k in t]
    assert stream.elapsed.tolist() == [float(k - t[0]) for k in t]
    for at in (-5, 0, 2.5, 3, 100):
        assert stream.cut_at(at) == sum(k < at for k in t)


def test_ten_events_by_hand() -> None:
    features = np.arange(20).reshape(10, 2)
    stream = make_stream(TEN, edge_x=features, label=[0, 1, 0, 0, 0, 0, 0, 0, 0, 1], name="ten")
    assert stream.ids.names.to_pylist() == ["a", "c", "b", "e", "d"]
    assert stream.src.tolist() == [0, 1, 0, 2, 2, 0, 3, 2, 0, 4]
    assert stream.dst.tolist() == [1, 1, 2, 0, 0, 1, 2, 3, 2, 0]
    assert stream.edge_x is not None
    assert stream.edge_x[:, 0].tolist() == [2, 4, 6, 8, 0, 12, 14, 16, 18, 10]
    assert stream.label is not None
    assert stream.label.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert (stream.n_events, stream.n_nodes, stream.edge_dim, stream.node_dim) == (10, 5, 2, 0)
    assert any("sorted" in note for note in stream.notes)
    assert stream.cut_at([1, 2, 4.5]).tolist() == [0, 2, 6]


def test_sorted_events_give_no_note() -> None:
    assert not make_stream([(1, 2, 0), (1, 2, 0), (2, 1, 3)]).notes


@pytest.mark.parametrize("shared", [True, False])
@given(events=EVENTS, later=EVENTS)
def test_appending_equals_reading_all_at_once(events: list, later: list, shared: bool) -> None:
    later = [(u, v, t + 20) for u, v, t in later]
    first = make_stream(events, shared_ids=shared)
    both = make_stream(events + later, shared_ids=shared)
    src, dst, t = (list(column) for column in zip(*later, strict=True))
    assert_same(first.append(src, dst, t), both)
    assert_same(first.append_stream(make_stream(later, shared_ids=shared)), both)


def test_append_rejects_earlier_events_and_other_feature_widths() -> None:
    stream = make_stream([(1, 2, 10), (2, 3, 20)], edge_x=np.ones((2, 3)))
    with pytest.raises(DataError, match="begin at 19, before the last event of the history \\(20\\)"):
        stream.append([1], [2], [19], np.ones((1, 3)))
    with pytest.raises(DataError, match="0 features each; those of the history have 3"):
        stream.append([1], [2], [21])
    assert stream.append([1], [2], [20], np.ones((1, 3))).n_events == 3
    with pytest.raises(DataError, match="is a date, but numbers are expected"):
        stream.append_stream(EventStream.from_columns([1], [2], ["2024-01-01"]))


def test_append_unifies_types_and_fills_missing_values() -> None:
    stream = make_stream([(1, 2, 10)], label=[1]).with_node_features(np.ones((2, 2)))
    grown = stream.append([1, "x"], ["y", 2], [10.5, 11])
    assert grown.ids.names.to_pylist() == ["1", "2", "y", "x"]
    assert grown.t.tolist() == [10, 10.5, 11]
    assert grown.label is not None
    assert np.isnan(grown.label[1:]).all()
    assert grown.node_x is not None
    assert grown.node_x[2:].sum() == 0
    assert stream.append([1], [2], [11.0]).t.dtype == np.int64
    later = make_stream([(3, 1, 12)]).with_node_features(np.array([[5, 6], [7, 8]]))
    joined = stream.append_stream(later)
    assert joined.node_x is not None
    assert joined.node_x.tolist() == [[1, 1], [1, 1], [5, 6]]


@given(events=EVENTS, shared=st.booleans(), rich=st.booleans(), dates=st.booleans())
def test_save_and_load_round_trip(
    tmp_path_factory: pytest.TempPathFactory, events: list, shared: bool, rich: bool, dates: bool
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    rng = np.random.default_rng(len(events))
    extra = {"edge_x": rng.random((len(events), 3)), "label": rng.random(len(events))} if rich else {}
    axis = TimeAxis("date" if dates else "number")
    stream = make_stream(events, shared_ids=shared, time=axis, name="näme", notes=["a, b"], **extra)
    if rich:
        stream = stream.with_node_features(rng.random((stream.n_nodes, 2)))
    stream.save(folder)
    back = EventStream.load(folder)
    assert_same(stream, back)
    assert all(x is None or x.flags.writeable for x in (back.edge_x, back.node_x))  # as torch requires
    assert (back.name, back.notes) == (stream.name, stream.notes)
    assert sorted(k.name for k in folder.iterdir()) == ["events.parquet", "nodes.parquet"]


def rewrite(folder: Path, **columns: object) -> None:
    table = pq.read_table(folder / "events.parquet")
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, folder / "events.parquet")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "events.parquet").unlink(), "is missing"),
        (lambda d: (d / "nodes.parquet").unlink(), "is missing"),
        (lambda d: (d / "events.parquet").write_bytes(b"PAR1 nonsense"), "damaged"),
        (lambda d: (d / "nodes.parquet").write_bytes(b""), "damaged"),
        (lambda d: (d / "nodes.parquet").write_bytes((d / "nodes.parquet").read_bytes()[:-40]), "damaged"),
        (lambda d: rewrite(d, src=[0, 1, 9]), "do not match"),
        (lambda d: rewrite(d, src=[0, -1, 1]), "do not match"),
        (lambda d: rewrite(d, src=[0, None, 1]), "damaged"),
        (lambda d: rewrite(d, t=[3, 2, 1]), "not sorted"),
        (lambda d: rewrite(d, t=[1.0, 2.0, float("nan")]), "not sorted"),
        (lambda d: rewrite(d, t=["1", "2", "3"]), "wrong type"),
        (lambda d: pq.write_table(pa.table({"src": [1]}), d / "events.parquet"), "written by another version"),
        (lambda d: pq.write_table(pa.table({"name": [1, 2, 3]}), d / "nodes.parquet"), "damaged"),
    ],
)
def test_load_raises_run_error_if_damaged(tmp_path: Path, damage: object, message: str) -> None:
    make_stream([(1, 2, 0), (2, 3, 1), (1, 3, 2)]).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(RunError, match=message):
        EventStream.load(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([], [], []), "no events"),
        (([1, 2], [1], [1, 2]), "unequal lengths: 2 sources, 1 destinations, 2 times"),
        (([1, None], [1, 2], [1, 2]), "row 1 .*id is missing"),
        ((["a", ""], [1, 2], [1, 2]), "row 1 .*id is missing"),
        (([1, 2.5], [1, 2], [1, 2]), "row 1 .*2.5 is not a whole number"),
        (([True, False], [1, 2], [1, 2]), "cannot hold node ids"),
        (([1, 2], [1, 2], [1, None]), "row 1 .*time is missing"),
        (([1, 2], [1, 2], [float("inf"), 1]), "row 0 .*not a finite number"),
        (([1, 2], [1, 2], [-(2**62), 2**62]), "too far"),
        (([1, 2], [1, 2], [-(2**63), 2**62]), "too far"),
        (([1, 2], [1, 2], [-1e308, 1e308]), "too far"),
        (([1, 2], [1, 2], ["1", "2024-01-01"]), "row 1 .*is a date, but numbers"),
        (([1, 2], [1, 2], ["2024-01-01", "1"]), "row 1 .*is a number, but an ISO date"),
        (([[1, 2]], [1], [1]), "cannot hold node ids"),
        ((np.ones((2, 2)), [1, 2], [1, 2]), "one dimension"),
    ],
)
def test_errors_name_the_bad_column_value(columns: tuple, message: str) -> None:
    with pytest.raises(DataError, match=message):
        EventStream.from_columns(*columns)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((2, 2)), r"shape \(2, 2\); 3 rows"),
        (np.ones(3), "3 rows of equal length"),
        (np.array([["a"], ["b"], ["c"]]), "not numbers"),
        (np.array([[1, 2], [3, np.nan], [5, 6]]), "row 1 .*column 1 .*nan"),
        (np.array([[1], [1e39], [5]]), "row 1 .*column 0"),
    ],
)
def test_errors_name_the_bad_feature_value(features: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_stream([(1, 2, 0), (2, 3, 1), (1, 3, 2)], edge_x=features)


def test_longest_time_span() -> None:
    assert make_stream([(1, 2, -(2**62)), (1, 2, 2**62 - 1)]).elapsed.tolist() == [0, float(2**63 - 1)]


def test_features_of_width_zero_are_none() -> None:
    assert make_stream([(1, 2, 0)], edge_x=np.ones((1, 0))).edge_x is None


def test_large_integer_times_stay_exact() -> None:
    base = 1_700_000_000_000_000_000  # nanoseconds: float64 cannot represent consecutive values
    stream = make_stream([(1, 2, base), (1, 2, base + 1), (1, 2, base + 3)])
    assert stream.elapsed.tolist() == [0, 1, 3]
    assert stream.tie_start.tolist() == [0, 1, 2]
    assert stream.cut_at(base + 1) == 1
    assert stream.cut_at([float("inf"), -float("inf"), 2.0**63, -1e300]).tolist() == [3, 0, 3, 0]


def test_repr_is_one_line() -> None:
    stream = EventStream.from_columns(["a"] * 1500, ["b"] * 1500, range(1500), name="mine")
    assert repr(stream) == "<EventStream mine: 1,500 events of 2 nodes>"
