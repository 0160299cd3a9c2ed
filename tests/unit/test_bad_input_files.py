"""Invalid files raise a DataError with the file, the line, and what was expected."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.io.readers import read_events, read_ids, read_pairs

GOOD = "src,dst,time,w\na,b,1,5\nb,c,2,6\n"


def check_raises(source: object, message: str, **options: object) -> str:
    """Check that reading raises a DataError that matches ``message``, and return its text."""
    with pytest.raises(DataError, match=message) as caught:
        read_events(source, **options)
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("\n \n\n", "is empty", id="blank lines"),
        pytest.param("# only\n% comments\n", "nothing but comments", id="only comments"),
        pytest.param("src,dst,time\n", "header but no rows", id="header alone"),
        pytest.param("src,dst,time", "header but no rows", id="header without line end"),
        pytest.param("src,dst,time\n# none\n\n", "header but no rows", id="header and a comment"),
        pytest.param(b"\x00\x01\x02garbage\xff" * 50, "neither text .* nor Parquet", id="binary"),
        pytest.param(b"\x89PNG\r\n\x1a\n\x00\x00", "neither text", id="picture"),
        pytest.param("src,dst,time\na,b,1\n".encode("utf-16"), "UTF-16", id="utf-16"),
        pytest.param("src,dst,time\na,b,1\né,b,2\n".encode("latin-1"), "line 3: not in UTF-8", id="latin-1"),
        pytest.param(b"\x1f\x8bnonsense", "damaged or incomplete gzip", id="no gzip after its mark"),
        pytest.param(
            gzip.compress(GOOD.encode() * 50, mtime=0)[:-20], "damaged or incomplete gzip", id="gzip cut short"
        ),
        pytest.param(gzip.compress(b"", mtime=0), "is empty", id="gzip of nothing"),
        pytest.param(b"PAR1 and no more", "damaged Parquet", id="no Parquet after its mark"),
        pytest.param(
            "src,dst,time\na,b,1\nb,c\n", "line 3: found 2 fields, expected 3 as in the header", id="row too short"
        ),
        pytest.param(
            "src,dst,time\na,b,1\n\n# x\nb,c,2,3\n",
            "line 5: found 4 fields, expected 3",
            id="row too long after a comment",
        ),
        pytest.param(
            "1 2 3\n1 2 3 4\n", "line 2: found 4 fields, expected 3 as in the first row", id="edge list row too long"
        ),
        pytest.param("src,dst,time\na,b\n", "line 2: found 2 fields, expected 3", id="first row too short"),
        pytest.param(
            "src,dst\na,b\n",
            "no column has a usual name for the time; name it with --time.*'src', 'dst'",
            id="no time",
        ),
        pytest.param("a,b,c\nx,y,z\n", "no column has a usual name for the source", id="no usual name"),
        pytest.param(
            "alice bob hello 5\nbob eve hi 6\n",
            "If the first line is data, give the position of the time",
            id="header in doubt",
        ),
        pytest.param("1 2\n2 3\n", "has 2 columns; at least src, dst and time", id="two columns"),
        pytest.param("hello\n", "has 1 column", id="one column"),
        pytest.param("src,dst,date,time\na,b,1,2\n", "'date' and 'time' could each be the time", id="two times"),
        pytest.param("src,dst,src,time\na,b,c,2\n", "'src' and 'src' could each be the source", id="two sources"),
        pytest.param(
            "src,dst,time\na,b,1\nb,c,soon\n",
            r"line 3: the time 'soon' is not a number \(column 'time'\)",
            id="time is a word",
        ),
        pytest.param("src,dst,time\na,b,1\n\n# c\nb,c,\n", "line 5: the time is missing", id="time missing"),
        pytest.param(
            "src,dst,time\r\na,b,1\r\nb,c,nan\r\n", "line 3: the time 'nan' is not a finite number", id="time is nan"
        ),
        pytest.param("a b 1\nb c -inf\n", "line 2: the time '-inf' is not a finite number", id="time is -inf"),
        pytest.param(
            "src,dst,time\na,b,1\nb,c,1e999\n", "line 3: the time '1e999' is not a finite number", id="time overflows"
        ),
        pytest.param(
            "src,dst,time\na,b,1\nb,c,2024-01-01\n",
            "line 3: the time '2024-01-01' is a date, but",
            id="date among numbers",
        ),
        pytest.param(
            "src,dst,time\na,b,2024-01-01\nb,c,17\n",
            "line 3: the time '17' is a number, but an ISO date",
            id="number among dates",
        ),
        pytest.param(
            "src,dst,time\na,b,2024-01-01\nb,c,2024-02-30\n",
            "line 3: the time '2024-02-30' is not an ISO date",
            id="no such day",
        ),
        pytest.param(
            "src,dst,time\na,b,soon\nb,c,1\n", "line 2: the time 'soon' is not a number", id="first time is a word"
        ),
        pytest.param(
            'src,dst,time\n"a\nb",b,1\nb,c,soon\n', "line 4: the time 'soon'", id="line after a quoted line break"
        ),
        pytest.param("1 2 2024-01-01 10:00:00\n", "date and time of day are in two columns", id="date in two columns"),
        pytest.param("src,dst,time\na,b,1\n,c,2\n", r"line 3: the id is missing \(column 'src'\)", id="source missing"),
        pytest.param(
            "src,dst,time\na,b,1\nc,,2\n", r"line 3: the id is missing \(column 'dst'\)", id="destination missing"
        ),
    ],
)
def test_files(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert "events.csv" in check_raises(path, message)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(GOOD)
    check_raises(tmp_path / "event.csv", r"no file .*event.csv. Did you mean 'events.csv'")
    check_raises(tmp_path / "nowhere" / "event.csv", "no file")
    check_raises(tmp_path, "is a folder")
    check_raises(tmp_path / "events.csv", "no file .*n.csv", node_features=tmp_path / "n.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"time": "tme"},
            r"no column 'tme' for --time. Did you mean 'time'\? The columns are 'src', 'dst', 'time', 'w'",
            id="time misspelt",
        ),
        pytest.param({"src": "zzzzz"}, "no column 'zzzzz' for --src. The columns are", id="no such source"),
        pytest.param({"dst": 4}, "no column 4 for --dst: it has 4, counted from 0", id="no such position"),
        pytest.param({"src": "dst"}, "'dst' usually|destination", id="ends swapped"),
        pytest.param({"src": "src", "dst": "src"}, "both the source and the destination", id="one column twice"),
        pytest.param({"features": "w,x"}, "no column 'x' for --features", id="unknown feature"),
        pytest.param(
            {"features": "w,w"}, "column 'w' is given as a feature, but is already in use", id="feature twice"
        ),
        pytest.param({"features": "time"}, "already in use", id="feature in use"),
        pytest.param({"features": "3-9"}, "range 3-9", id="range too long"),
        pytest.param({"features": "3-1"}, "range 3-1", id="range backwards"),
        pytest.param({"ids": "both"}, "auto, shared or separate", id="unknown ids"),
    ],
)
def test_options(tmp_path: Path, options: dict, message: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(GOOD)
    check_raises(path, message, **options)


def test_column_name_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_text("1 2 3\n2 3 4\n")
    check_raises(path, "has no header, so no column 'when' for --time; give its position, 0 to 2", time="when")
    check_raises(path, "both the source and the destination", src=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("red", "line 3: the feature 'red' in column 'w' is not a number", id="word"),
        pytest.param("", "line 3: the feature '' in column 'w' is not a number", id="empty"),
        pytest.param("nan", "line 3: the feature in column 'w' is not a finite number", id="nan"),
        pytest.param("inf", "line 3: the feature in column 'w' is not a finite number", id="inf"),
        pytest.param("1e60", "line 3: the feature in column 'w' is not a finite number", id="overflow"),
    ],
)
def test_features(tmp_path: Path, value: str, message: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(f"src,dst,time,w\na,b,1,5\nb,c,2,{value}\n")
    check_raises(path, message, features="w")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        pytest.param({"src": [1, None]}, "row 1 .*the id is missing", id="id missing"),
        pytest.param({"src": [1.5, 2.0]}, "row 0 .*the id 1.5 is not a whole number", id="fractional id"),
        pytest.param({"src": [[1], [2]]}, "cannot hold node ids", id="id is a list"),
        pytest.param({"t": [1.0, float("nan")]}, "row 1 .*not a finite number", id="time is nan"),
        pytest.param({"t": [True, False]}, "column 't'.*cannot hold times", id="time is a boolean"),
        pytest.param({"t": pa.array([None, None], pa.timestamp("us"))}, "row 0 .*time is missing", id="dates missing"),
        pytest.param(
            {"features": ["a", "b"]}, "column 'features' .* does not hold numbers but string", id="features are text"
        ),
        pytest.param(
            {"features": [[1.0, 2.0], [3.0]]},
            "row 1 .*1 features in column 'features', but 2 in the first row",
            id="features of 2 sources, 1 destinations",
        ),
        pytest.param(
            {"features": [1.0, None]}, "row 1 .*the feature in column 'features' is missing", id="feature missing"
        ),
        pytest.param({"features": [1.0, float("inf")]}, "row 1 .*not a finite number", id="feature is inf"),
    ],
)
def test_parquet(tmp_path: Path, columns: dict, message: str) -> None:
    pq.write_table(pa.table({"src": [1, 2], "dst": [2, 3], "t": [0, 1], **columns}), tmp_path / "e.parquet")
    check_raises(tmp_path / "e.parquet", message, features="features" if "features" in columns else None)


def test_tables_without_rows(tmp_path: Path) -> None:
    empty = pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64()), "t": pa.array([], pa.int64())})
    pq.write_table(empty, tmp_path / "e.parquet")
    check_raises(tmp_path / "e.parquet", "has no events")
    check_raises(empty, "has no events")
    check_raises(pd.DataFrame({"src": [], "dst": [], "t": []}), "has no events")
    check_raises(pd.DataFrame(), "no column has a usual name")
    check_raises(
        pd.DataFrame({"src": [1], "dst": [2], "t": [3], "y": ["a"]}), "the label 'a' is not a number", label="y"
    )
    check_raises(read_events(pd.DataFrame({"src": [1], "dst": [2], "t": [3]})), "already")
    check_raises(SimpleNamespace(src=np.zeros(0, int), dst=np.zeros(0, int), t=np.zeros(0)), "no events")
    check_raises(
        SimpleNamespace(src=np.zeros(2, int), dst=np.zeros(1, int), t=np.zeros(2)), "2 sources, 1 destinations"
    )


ML = ",u,i,ts,label,idx\n0,1,3,0.0,0,1\n1,2,3,1.0,0,2\n"


@pytest.mark.parametrize(
    ("text", "edges", "nodes", "message"),
    [
        pytest.param(
            ML, np.ones((5, 2)), None, r"ml_x.npy has 5 rows; 3 were expected for the 2 events", id="too many rows"
        ),
        pytest.param(
            ML, np.ones(3), None, r"ml_x.npy holds float64 of shape \(3,\); a matrix of numbers", id="one axis"
        ),
        pytest.param(ML, np.array([["a"], ["b"], ["c"]]), None, "a matrix of numbers", id="text"),
        pytest.param(
            ML,
            np.array([[{}], [{}], [{}]], dtype=object),
            None,
            "ml_x.npy cannot be read: it holds Python objects",
            id="objects",
        ),
        pytest.param(ML, np.array([[0.0], [1.0], [np.nan]]), None, r"ml_x.npy, row 2 .*nan", id="nan"),
        pytest.param(ML, b"\x93NUMPY\x01\x00nope", None, "ml_x.npy cannot be read: it is damaged", id="damaged"),
        pytest.param(ML, b"", None, "ml_x.npy cannot be read: it is damaged", id="empty"),
        pytest.param(ML.replace(",1\n1", ",7\n1"), np.ones((3, 2)), None, "line 2: idx 7 has no row", id="no such row"),
        pytest.param(
            ML.replace(",1\n1", ",x\n1"), np.ones((3, 2)), None, "'idx' does not hold whole numbers", id="idx is a word"
        ),
        pytest.param(
            ML,
            None,
            np.ones((3, 2)),
            "ml_x_node.npy has 3 rows, but the node ids run from 1 to 3.* 4 rows were expected",
            id="too few nodes",
        ),
        pytest.param(
            ML,
            None,
            np.array([[{}]], dtype=object),
            "ml_x_node.npy cannot be read: it holds Python objects",
            id="objects for nodes",
        ),
        pytest.param(ML.replace(",3,", ",c,"), None, np.ones((4, 2)), "needs integer ids", id="ids are text"),
    ],
)
def test_published_layouts(tmp_path: Path, text: str, edges: object, nodes: object, message: str) -> None:
    path = tmp_path / "ml_x.csv"
    path.write_text(text)
    for name, rows in (("ml_x.npy", edges), ("ml_x_node.npy", nodes)):
        if isinstance(rows, bytes):
            (tmp_path / name).write_bytes(rows)
        elif rows is not None:
            np.save(tmp_path / name, rows)
    check_raises(path, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("id,x\na,1\nb,2\na,3\n", "n.csv, line 4: the id 'a' comes a second time", id="id twice"),
        pytest.param("id,x\nq,1\nq,3\na,3\n", "n.csv, line 3: the id 'q' comes a second time", id="unknown id twice"),
        pytest.param("id\na\n", "an id column but no features", id="no features"),
        pytest.param("id,x\nq,1\n", "None of the 1 ids in .*n.csv occurs in the events", id="no known id"),
        pytest.param("id,x\na,red\n", "n.csv, line 2: the feature 'red' in column 'x' is not a number", id="word"),
        pytest.param("id,x\na,1\nb,nan\n", "n.csv, line 3: the feature in column 'x' is not a finite number", id="nan"),
        pytest.param("id,x\na,1\nb\n", "n.csv, line 3: found 1 fields, expected 2", id="row too short"),
        pytest.param("id,x\na,1\n,2\n", "n.csv, line 3: the id is missing", id="id missing"),
        pytest.param("", "n.csv is empty", id="empty"),
    ],
)
def test_node_features(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.csv").write_text(GOOD)
    (tmp_path / "n.csv").write_text(text)
    check_raises(tmp_path / "e.csv", message, node_features=tmp_path / "n.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("src,dst\n", "header but no rows", id="header alone"),
        pytest.param("a\n", "has 1 column; at least src and dst", id="one column"),
        pytest.param("src,dst\na,b\nc\n", "line 3: found 1 fields, expected 2", id="row too short"),
        pytest.param("src,dst\na,\n", "line 2: the id is missing", id="id missing"),
    ],
)
def test_pairs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_pairs(path)


def test_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("id\n")
    with pytest.raises(DataError, match="header but no rows"):
        read_ids(path)
    with pytest.raises(DataError, match=re.escape("Ids cannot be read from int")):
        read_ids(5)


PIECES = [
    "src",
    "dst",
    "time",
    "u",
    "i",
    "ts",
    "1",
    "2.5",
    "nan",
    "2024-01-01",
    "a",
    "é",
    ",",
    ",",
    ";",
    "\t",
    " ",
    "  ",
]
MARKS = [
    "\n",
    "\n",
    "\n",
    "\r\n",
    '"',
    "#",
    "%",
    "\0",
    "\ufeff",
    "-",
    "T10:00",
    "label",
    "idx",
    "id",
    "user_id,item_id",
]


@settings(max_examples=300)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from(PIECES + MARKS), max_size=40).map(lambda parts: "".join(parts).encode()),
    ),
    zipped=st.booleans(),
)
def test_any_bytes_are_read_or_raise_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "anything"
    path.write_bytes(gzip.compress(content) if zipped else content)
    for read in (read_events, read_pairs, read_ids, lambda source: read_events(source, time=1, features="rest")):
        try:
            read(path)
        except DataError as error:
            assert "anything" in str(error)
