"""export_stream and read_events round trip; as_stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.events.export import export_stream
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.io import as_stream
from cordgt.io.readers import read_events

TEXT_IDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n", exclude_categories=["Cs"]), min_size=1, max_size=4
)
FLOATS32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def streams(draw: st.DrawFn) -> EventStream:
    n = draw(st.integers(1, 8))
    ids = draw(
        st.sampled_from([TEXT_IDS, st.integers(-(2**63), 2**63 - 1), st.sampled_from(["#a", "%b", '"', 'a"b,', "c"])])
    )
    columns = [draw(st.lists(ids, min_size=n, max_size=n)) for _ in range(2)]
    kind = draw(st.sampled_from(["int", "float", "date"]))
    numbers = st.integers(-(2**61), 2**61) if kind == "int" else st.floats(-1e300, 1e300)
    numbers = st.integers(-6 * 10**16, 2 * 10**17) if kind == "date" else numbers
    t = np.array(draw(st.lists(numbers, min_size=n, max_size=n)), np.float64 if kind == "float" else np.int64)
    width = draw(st.integers(0, 3))
    edge_x = [draw(st.lists(FLOATS32, min_size=width, max_size=width)) for _ in range(n)] if width else None
    label = draw(st.none() | st.lists(st.integers(0, 1), min_size=n, max_size=n))
    axis = TimeAxis("date" if kind == "date" else "number")
    stream = EventStream.from_columns(*columns, t, edge_x, label, shared_ids=draw(st.booleans()), time=axis)
    if draw(st.booleans()):
        rows = [draw(st.lists(FLOATS32, min_size=2, max_size=2)) for _ in range(stream.n_nodes)]
        stream = stream.with_node_features(np.array(rows))
    return stream


@pytest.mark.parametrize("extension", ["csv", "parquet"])
@given(stream=streams())
def test_export_and_read_round_trip(
    tmp_path_factory: pytest.TempPathFactory, stream: EventStream, extension: str
) -> None:
    folder = tmp_path_factory.mktemp("convert")
    written = export_stream(stream, folder / f"out.{extension}")
    assert sorted(k.name for k in folder.iterdir()) == sorted(k.name for k in written)
    back = read_events(written[0], node_features=written[1] if len(written) > 1 else None)
    for name in ("src", "dst", "t", "edge_x", "node_x", "label"):
        x, y = getattr(stream, name), getattr(back, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, err_msg=name)
    assert [str(k) for k in back.ids.names.to_pylist()] == [str(k) for k in stream.ids.names.to_pylist()]
    assert back.ids.shared == stream.ids.shared
    assert back.time == stream.time


def test_export_rejects_other_extensions(tmp_path: Path) -> None:
    stream = EventStream.from_columns([1], [2], [3])
    with pytest.raises(DataError, match=r"'.xlsx'; .csv or .parquet"):
        export_stream(stream, tmp_path / "out.xlsx")
    with pytest.raises(DataError, match="cannot be written"):
        export_stream(stream, tmp_path / "no" / "out.csv")
    assert not list(tmp_path.iterdir())


def test_as_stream_takes_what_people_have(tmp_path: Path) -> None:
    stream = EventStream.from_columns(["a", "b"], ["b", "c"], [1, 2])
    assert as_stream(stream) is stream
    assert as_stream(stream, ids="auto", src=None) is stream
    columns = {"who": ["a", "b"], "whom": ["b", "c"], "time": [1, 2]}
    path = tmp_path / "events.csv"
    path.write_text("who,whom,time\na,b,1\nb,c,2\n")
    for data in (pd.DataFrame(columns), pa.table(columns), pa.RecordBatch.from_pydict(columns), path, str(path)):
        found = as_stream(data, src="who", dst="whom")
        assert (found.t.tolist(), found.ids.names.to_pylist()) == ([1, 2], ["a", "b", "c"])


def test_as_stream_explains_what_it_cannot_take() -> None:
    stream = EventStream.from_columns(["a"], ["b"], [1])
    with pytest.raises(DataError, match="A stream takes no option 'src'"):
        as_stream(stream, src="who")
    for data in (5, None, [(1, 2, 3)]):
        with pytest.raises(DataError, match=r"Events cannot be read from .*; pass a path, a pandas or an Arrow table"):
            as_stream(data)
