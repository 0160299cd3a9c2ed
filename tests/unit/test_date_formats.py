"""Dates that are not ISO text: inferred order of day and month, formats given by the user, decimal commas."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import DataError, RowError
from cordgt.events.date_formats import check_date_format, infer_date_format, parse_dates
from cordgt.events.times import TimeAxis
from cordgt.io.convert import append_to, convert_to_store
from cordgt.io.readers import read_events, read_pairs

FORMATS = [
    "%d/%m/%Y", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%Y%m%d", "%y-%m-%d %H", "%Y", "%d-%m-%Y %H:%M:%S.%f",
    "%d %b %Y", "%A, %d. %B %Y", "%m/%d/%Y %I:%M %p", "%Y-%j", "%Y-%m-%dT%H:%M:%S%z", "%d%%%m%%%Y",
]  # fmt: skip


@given(
    st.sampled_from(FORMATS),
    st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1), timezones=st.just(UTC)), min_size=1, max_size=6),
)
def test_formats_agree_with_python(time_format: str, dates: list[datetime]) -> None:
    texts = [k.strftime(time_format) for k in dates]
    expected = [datetime.strptime(k, time_format) for k in texts]
    expected = [k if k.tzinfo else k.replace(tzinfo=UTC) for k in expected]
    found = parse_dates(pa.array(texts), time_format)
    assert TimeAxis("date").parse_column(expected).tolist() == found.tolist()


@pytest.mark.parametrize("time_format", ["%d/%m/%Y", "%d %b %Y"])
@pytest.mark.parametrize("bad", ["30/02/2024", "30 Feb 2024", "1/13/2024", "01/01/2024x", "", "2024"])
def test_wrong_dates_name_their_row(time_format: str, bad: str) -> None:
    good = datetime(2024, 1, 31).strftime(time_format)
    with pytest.raises(RowError) as caught:
        parse_dates(pa.array([good, good, bad]), time_format)
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["01/02/2024", "13/02/2024"], "%d/%m/%Y"),
        (["01/02/2024", "02/13/2024"], "%m/%d/%Y"),
        (["1.2.2024 9:05", "31.12.2024 10:00"], "%d.%m.%Y %H:%M"),
        (["31-12-2024T10:00:05.5"], "%d-%m-%YT%H:%M:%S.%f"),
        (["12/31/2024 1:05 PM"], "%m/%d/%Y %I:%M %p"),
        (["2024/01/02 10:00"], "%Y/%m/%d %H:%M"),
        (["2024-1-2"], "%Y-%m-%d"),
        (["2024-01-02x"], None),
        (["5"], None),
    ],
)
def test_infer_format(texts: list[str], expected: str | None) -> None:
    assert infer_date_format([pa.array(texts)]) == expected
    assert infer_date_format([pa.array([], pa.string()), *(pa.array([k]) for k in texts)]) == expected


def test_day_and_month_that_cannot_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src,dst,date\na,b,03/04/2024\nb,c,05/06/2024\n")
    message = r"e.csv, column 'date': the dates, such as 03/04/2024, could have the day or the month first.*%d/%m/%Y"
    for read in (read_events, lambda source: convert_to_store(source, tmp_path / "s.store")):
        with pytest.raises(DataError, match=message):
            read(path)
    days = read_events(path, time_format="%d/%m/%Y")
    months = read_events(path, time_format="%m/%d/%Y")
    assert days.time.format(days.t).to_pylist() == ["2024-04-03T00:00:00Z", "2024-06-05T00:00:00Z"]
    assert months.time.format(months.t).to_pylist() == ["2024-03-04T00:00:00Z", "2024-05-06T00:00:00Z"]


def test_the_whole_column_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"a,b,{k % 12 + 1:02}/03/2024" for k in range(200)] + ["a,c,25/03/2024"]
    path = tmp_path / "e.csv"
    path.write_text("src,dst,date\n" + "\n".join(rows) + "\n")
    for module in ("event_chunks", "file_chunks"):
        monkeypatch.setattr(f"cordgt.io.{module}.HEAD_BYTES", 200)
    stream = read_events(path)
    store = convert_to_store(path, tmp_path / "s.store")
    assert stream.t.tolist() == store.stream().t.tolist()
    assert stream.time.format_one(stream.t[-1]) == "2024-03-25T00:00:00Z"
    note = "times are read in the format %d/%m/%Y (inferred; --time-format if not)"
    assert note in stream.notes and note in store.notes
    later = tmp_path / "later.csv"
    later.write_text("src,dst,date\na,b,01/04/2024\n")  # ambiguous alone; read as the store was
    grown = append_to(tmp_path / "s.store", later).stream()
    assert grown.time.format_one(grown.t[-1]) == "2024-04-01T00:00:00Z"


def test_a_month_above_12_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src,dst,date\na,b,25/03/2024\nb,c,03/25/2024\n")
    with pytest.raises(DataError, match=r"line 3: the time '03/25/2024' is not a date in the format %d/%m/%Y"):
        read_events(path)


@pytest.mark.parametrize("bad", ["%H:%M", "%Q", "day", "%", "%d/%m"])
def test_formats_that_cannot_be_used(bad: str) -> None:
    with pytest.raises(DataError, match="--time-format"):
        check_date_format(bad)


def test_format_applies_to_whole_numbers_but_not_to_dates() -> None:
    frame = pd.DataFrame({"src": [1, 2], "dst": [2, 3], "time": [20240131, 20240201]})
    stream = read_events(frame, time_format="%Y%m%d")
    assert stream.time.format(stream.t).to_pylist() == ["2024-01-31T00:00:00Z", "2024-02-01T00:00:00Z"]
    typed = frame.assign(time=pd.to_datetime(["2024-01-31", "2024-02-01"]))
    with pytest.raises(DataError, match="--time-format applies to text"):
        read_events(typed, time_format="%Y%m%d")


def test_format_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "e.txt"
    path.write_text("a;b;01-Mar-2024\nb;c;02-Mar-2024\n")
    assert read_events(path, time=2, time_format="%d-%b-%Y").n_events == 2


def test_queries_in_the_format_of_the_training(tmp_path: Path) -> None:
    path, axis = tmp_path / "q.csv", TimeAxis("date")
    for text in ("01/04/2024", "2024-04-01"):
        path.write_text(f"src,dst,time\na,b,{text}\n")
        times = read_pairs(path, time_format="%d/%m/%Y", axis=axis)[2]
        assert axis.format_one(times[0]) == "2024-04-01T00:00:00Z"
    path.write_text("src,dst,time\na,b,01/04/2024\n")
    with pytest.raises(DataError, match="--time-format reads other formats"):
        read_pairs(path, axis=axis)


# -------------------- decimal commas


@pytest.mark.parametrize("header", ["src;dst;time;label;w\n", ""])
def test_decimal_commas(tmp_path: Path, header: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(header + "a;b;1,5;0;0,25\nb;c;2;1;-3\nc;d;12,75;1;1000,5\n")
    options = {} if header else {"time": 2, "label": 3}
    stream = read_events(path, features="4", **options)
    assert stream.t.tolist() == [1.5, 2, 12.75]
    assert stream.edge_x is not None
    assert stream.edge_x[:, 0].tolist() == [0.25, -3, 1000.5]
    assert stream.label is not None
    assert stream.label.tolist() == [0, 1, 1]
    assert any("decimal commas" in note for note in stream.notes)
    store = convert_to_store(path, tmp_path / "s.store", features="4", **options)
    np.testing.assert_array_equal(store.stream().edge_x, stream.edge_x)
    assert store.stream().t.tolist() == stream.t.tolist()
    assert any("decimal commas" in note for note in store.notes)


def test_decimal_points_and_commas_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src;dst;time;w\na;b;1.5;0\nb;c;2,5;1\n")
    with pytest.raises(DataError, match="line 3: the time '2,5' is not a number"):
        read_events(path)
    path.write_text("src;dst;time\na,b;b;1.5\nb;c,1;2\n")  # commas in ids are no decimal commas
    stream = read_events(path)
    assert stream.ids.names.to_pylist() == ["a,b", "b", "c,1"]
    assert not any("decimal" in note for note in stream.notes)
