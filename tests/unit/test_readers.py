"""`read_events`, `read_pairs`, `read_ids`: formats, columns, published layouts, tables from Python."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cordgt.errors import DataError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.io import open_table, readers
from cordgt.io.column_options import columns_in_header, has_columns
from cordgt.io.convert import convert_to_store
from cordgt.io.open_table import load_file
from cordgt.io.readers import read_events, read_ids, read_pairs

ROWS = [("7", "x", "1.5"), ("x", "7", "2"), ("é", "x", "2"), ("7", "7", "9")]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def raw(stream: EventStream) -> list[tuple[object, object, object]]:
    """Return the events with their original ids."""
    columns = stream.ids.decode(stream.src), stream.ids.decode(stream.dst), stream.time.format(stream.t)
    return list(zip(*(k.to_pylist() for k in columns), strict=True))


EXPECTED = [("7", "x", 1.5), ("x", "7", 2.0), ("é", "x", 2.0), ("7", "7", 9.0)]
TEXTS = {
    "csv": "src,dst,time\n" + "".join(f"{','.join(k)}\n" for k in ROWS),
    "csv without the last line end": "src,dst,time\n" + "\n".join(",".join(k) for k in ROWS),
    "csv without header": "".join(f"{','.join(k)}\n" for k in ROWS),
    "tsv": "src\tdst\ttime\n" + "".join("\t".join(k) + "\n" for k in ROWS),
    "semicolons": "src;dst;time\n" + "".join(";".join(k) + "\n" for k in ROWS),
    "bars": "src|dst|time\n" + "".join("|".join(k) + "\n" for k in ROWS),
    "edge list": "".join(f"{' '.join(k)}\n" for k in ROWS),
    "ragged white space": "".join(f"  {'   '.join(k)} \t \n" for k in ROWS),
    "edge list with header": "src dst time\n" + "".join(f"{' '.join(k)}\n" for k in ROWS),
    "crlf": "src,dst,time\r\n" + "".join(f"{','.join(k)}\r\n" for k in ROWS),
    "byte order mark": "\ufeffsrc,dst,time\n" + "".join(f"{','.join(k)}\n" for k in ROWS),
    "comments": '# a, "b"\n%\nsrc,dst,time\n# c\n' + "%x,y,z\n".join(f"{','.join(k)}\n" for k in ROWS) + "# end",
    "blank lines": "\n\nsrc,dst,time\n\n" + "\n  \n".join(",".join(k) for k in ROWS) + "\n\n",
    "quotes": '"src","dst","time"\n' + "".join(",".join(f'"{k}"' for k in row) + "\n" for row in ROWS),
    "quotes and comments": '# "\n"src","dst","time"\n#x"\n' + "".join(f'"{a}",{b},{t}\n' for a, b, t in ROWS),
    "other order and case": "Time,Label,TARGET,Source\n" + "".join(f"{t},0,{b},{a}\n" for a, b, t in ROWS),
    "space after the comma": "src, dst, time\n" + "".join(f"{', '.join(k)}\n" for k in ROWS),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_every_dialect_reads_the_same(tmp_path: Path, text: str, zipped: bool) -> None:
    data = gzip.compress(text.encode()) if zipped else text.encode()
    stream = read_events(write(tmp_path / "events.parquet", data))  # the suffix does not matter
    assert raw(stream) == EXPECTED
    assert stream.name == "events"


def test_parquet_is_detected_by_content(tmp_path: Path) -> None:
    columns = {"src.x": [0] * 4, "src": ["7", "x", "é", "7"], "dst": ["x", "7", "x", "7"], "time": [1.5, 2, 2, 9]}
    pq.write_table(pa.table(columns), tmp_path / "events.csv")
    assert raw(read_events(tmp_path / "events.csv")) == EXPECTED
    zipped = write(tmp_path / "events.gz", gzip.compress((tmp_path / "events.csv").read_bytes()))
    assert raw(read_events(zipped)) == EXPECTED


def test_ids_are_integers_only_in_canonical_form(tmp_path: Path) -> None:
    def ids_of(text: str, **options: object) -> list:
        return read_events(write(tmp_path / "e.csv", text), **options).ids.names.to_pylist()

    assert ids_of("1,2,0\n-3,0,1\n") == [1, 2, -3, 0]
    assert ids_of("1,2,0\n007,3,1\n") == ["1", "2", "007", "3"]
    assert ids_of("1,2,0\n+3,3,1\n") == ["1", "2", "+3", "3"]
    assert ids_of("1,2,0\n-0,3,1\n") == ["1", "2", "-0", "3"]
    assert ids_of("1,2,0\n1.0,3,1\n") == ["1", "2", "1.0", "3"]
    assert ids_of("1,2,0\n0x1F,3,1\n") == ["1", "2", "0x1F", "3"]
    assert ids_of("1,2,0\n99999999999999999999,3,1\n") == ["1", "2", "99999999999999999999", "3"]
    assert ids_of("1,NA,0\nnull,nan,1\n") == ["1", "NA", "null", "nan"]
    assert ids_of("1,a b,0\n2,a  b,1\n") == ["1", "a b", "2", "a  b"]


def test_typed_ids(tmp_path: Path) -> None:
    def names(**columns: object) -> pa.Array:
        pq.write_table(pa.table({**columns, "t": [0, 1]}), tmp_path / "e.parquet")
        return read_events(tmp_path / "e.parquet").ids.names

    assert names(src=pa.array([1, 2], pa.uint8()), dst=[2, 3]).to_pylist() == [1, 2, 3]
    assert names(src=[1.0, 2.0], dst=[2, 3]).to_pylist() == [1, 2, 3]
    assert names(src=["1", "2"], dst=["2", "03"]).to_pylist() == ["1", "2", "03"]
    assert names(src=pa.array(["a", "b"]).dictionary_encode(), dst=[2, 3]).to_pylist() == ["a", "2", "b", "3"]
    assert names(src=["1", "2"], dst=["2", "3"]).type == pa.string()


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        ("u,v,t", (0, 1)),
        ("i,j,t", (0, 1)),
        ("to,from,date", (1, 0)),
        ("User_ID,time,Item_ID", (0, 2)),
        ("SENDER,RECIPIENT,timestamp", (0, 1)),
        ("customer,product,unixtime", (0, 1)),
        ("customer,ts,page", (0, 2)),
        ("FromNodeId,ToNodeId,ts", (0, 1)),
        ("src,dst,when", (0, 1)),
        ("src,At,dst", (0, 2)),
        ("src,dst,occurred_at", (0, 1)),
    ],
)
def test_usual_names(tmp_path: Path, header: str, pair: tuple[int, int]) -> None:
    time = 3 - sum(pair)
    values = ["", "", ""]
    values[pair[0]], values[pair[1]], values[time] = "p", "q", "5"
    stream = read_events(write(tmp_path / "e.csv", f"{header}\n{','.join(values)}\n"))
    assert raw(stream) == [("p", "q", 5)]
    assert header.split(",")[pair[0]] in " ".join(stream.notes)


def test_common_time_name_wins_over_less_common_one(tmp_path: Path) -> None:
    assert raw(read_events(write(tmp_path / "e.csv", "src,dst,at,time\np,q,3,5\n"))) == [("p", "q", 5)]


FIVE = "when,who,w,whom,mark\n4,a,0.5,b,1\n3,c,1.5,a,0\n"


@pytest.mark.parametrize(
    "options",
    [
        {"src": "who", "dst": "whom", "time": "when"},
        {"src": "WHO", "dst": "Whom", "time": "when"},
        {"src": 1, "dst": "3", "time": 0},
        {"src": "1", "dst": "3", "time": "0", "label": "mark", "features": "w"},
    ],
)
def test_columns_by_option(tmp_path: Path, options: dict) -> None:
    stream = read_events(write(tmp_path / "e.csv", FIVE), **options)
    assert raw(stream) == [("c", "a", 3), ("a", "b", 4)]
    assert (stream.label is not None) == ("label" in options)
    if "features" not in options:
        assert any("not read" in note and "'w'" in note for note in stream.notes)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("w,mark", [[1.5, 0], [0.5, 1]]),
        ("rest", [[1.5, 0], [0.5, 1]]),
        ("2,4", [[1.5, 0], [0.5, 1]]),
        ("mark, 2", [[0, 1.5], [1, 0.5]]),
        (["w", 4], [[1.5, 0], [0.5, 1]]),
        ("2-2", [[1.5], [0.5]]),
        ("none", None),
        (None, None),
    ],
)
def test_features_by_option(tmp_path: Path, features: object, expected: list | None) -> None:
    path = write(tmp_path / "e.csv", FIVE)
    stream = read_events(path, src="who", dst="whom", time="when", features=features)
    assert (None if stream.edge_x is None else stream.edge_x.tolist()) == expected


def test_positions_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "e.txt", "# KONECT\n1 2 1 100 5 6\n2 3 -1 50 7 8\n")
    stream = read_events(path, time=3, features="4-5")
    assert raw(stream) == [(2, 3, 50), (1, 2, 100)]
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[7, 8], [5, 6]]
    notes = " ".join(stream.notes)
    assert "no header" in notes
    assert "columns not read: 2" in notes
    assert "1 line starting with # or % skipped" in notes
    assert "sorted" in notes


def test_one_given_endpoint_finds_its_usual_partner(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "source,target,i,time,who\na,b,c,1,d\n")
    assert raw(read_events(path, src="source")) == [("a", "b", 1)]
    assert raw(read_events(path, dst="target")) == [("a", "b", 1)]
    assert raw(read_events(path, src="who", dst="i")) == [("d", "c", 1)]
    with pytest.raises(DataError, match="'target' and 'i' could each be the destination; name one with --dst"):
        read_events(path, src="who")


def test_text_columns_are_not_features(tmp_path: Path) -> None:
    text = write(tmp_path / "e.csv", "sender,receiver,time,msg\na,b,1,hello\n")
    assert read_events(text).edge_x is None
    spaced = write(tmp_path / "f.csv", "src, dst, time, w\na, b, 1, 2.5\n")
    stream = read_events(spaced, features="w")
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[2.5]]
    assert raw(stream) == [("a", "b", 1)]


def test_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(TEXTS["csv"]))
    writer.start()
    assert raw(read_events(pipe)) == EXPECTED
    writer.join()


def test_loaded_file_is_opened_again_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = load_file(write(tmp_path / "e.csv.gz", gzip.compress(TEXTS["csv"].encode())))
    file.path.unlink()
    assert load_file(file) is file
    assert has_columns(file, {"src": "src"}) and not has_columns(file, {"src": "who"})
    assert columns_in_header(file, {"src": "SRC", "dst": "whom"}) == {"src": "SRC"}
    assert raw(read_events(file)) == EXPECTED
    assert read_events(file).name == "e"
    assert read_ids(file, "dst").to_pylist() == [row[1] for row in ROWS]
    monkeypatch.setattr(open_table, "HEAD_BYTES", 30)
    assert file.head().data == b"src,dst,time\n7,x,1.5\nx,7,2\n"
    assert raw(read_events(file)) == EXPECTED


def test_load_file_returns_other_sources_unchanged(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none.csv", "a\0b", pa.table({"a": [1]})):
        assert load_file(source) is source


def test_column_name_that_is_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,time,0,1\na,b,1,10,20\n")
    stream = read_events(path, features="0,1")
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[10, 20]]


def test_node_named_like_a_column_is_not_a_header(tmp_path: Path) -> None:
    assert raw(read_events(write(tmp_path / "e.txt", "t u 5\nu t 6\n"))) == [("t", "u", 5), ("u", "t", 6)]
    assert raw(read_events(write(tmp_path / "e.txt", "from to 5\n"))) == [("from", "to", 5)]


def test_single_event(tmp_path: Path) -> None:
    stream = read_events(write(tmp_path / "e.txt", "1 2 3"))
    assert (stream.n_events, stream.n_nodes) == (1, 2)


def test_id_spaces(tmp_path: Path) -> None:
    items = write(tmp_path / "i.csv", "user_id,item_id,time\n1,1,0\n2,1,1\n")
    links = write(tmp_path / "l.csv", "src,dst,time\n1,1,0\n2,1,1\n")
    assert read_events(items).n_nodes == 3
    assert read_events(items, ids="shared").n_nodes == 2
    assert read_events(links).n_nodes == 2
    assert read_events(links, ids="separate").n_nodes == 3
    assert any("--ids shared" in note for note in read_events(items).notes)
    assert any("--ids separate" in note for note in read_events(links).notes)
    named = write(tmp_path / "n.csv", "customer,product,time\n1,1,0\n")
    assert read_events(named).n_nodes == 2
    with pytest.raises(DataError, match="Did you mean 'separate'"):
        read_events(links, ids="seperate")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["3", "1"], "i", [1, 3]),
        (["3.0", "1"], "f", [1, 3]),
        (["1e3", " 1"], "f", [1, 1000]),
        (["2024-01-02", "2024-01-01"], "i", [1704067200 * 10**6, 1704153600 * 10**6]),
        (["2024-01-01T01:00:00+01:00", "2024-01-01 00:00:01"], "i", [1704067200 * 10**6, 1704067201 * 10**6]),
    ],
)
def test_times(tmp_path: Path, values: list[str], kind: str, expected: list) -> None:
    stream = read_events(write(tmp_path / "e.csv", "src,dst,time\n" + "".join(f"a,b,{k}\n" for k in values)))
    assert stream.t.dtype.kind == kind
    assert stream.t.tolist() == expected
    assert stream.time.kind == ("date" if "-" in values[0] else "number")


# -------------------- published layouts


def ml_files(folder: Path, *, rows: int | None = None, node_rows: int | None = None, zipped: bool = False) -> Path:
    """Five events in the layout of the published files, not sorted, ids from 1."""
    text = ",u,i,ts,label,idx\n0,1,4,0.0,0,1\n1,2,5,3.0,1,2\n2,1,5,2.0,0,3\n3,1,4,3.0,0.0,4\n4,3,3,9.0,0,5\n"
    path = folder / ("ml_tiny.csv.gz" if zipped else "ml_tiny.csv")
    write(path, gzip.compress(text.encode()) if zipped else text)
    if rows is not None:
        np.save(folder / "ml_tiny.npy", np.arange(rows * 2, dtype=float).reshape(rows, 2))
    if node_rows is not None:
        np.save(folder / "ml_tiny_node.npy", np.arange(node_rows * 3).reshape(node_rows, 3))
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_ml_layout(tmp_path: Path, zipped: bool) -> None:
    stream = read_events(ml_files(tmp_path, rows=6, node_rows=6, zipped=zipped))
    assert (stream.name, stream.n_events, stream.n_nodes, stream.ids.shared) == ("tiny", 5, 5, True)
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[2, 3], [6, 7], [4, 5], [8, 9], [10, 11]]
    assert stream.label is not None
    assert stream.label.tolist() == [0, 0, 1, 0, 0]
    assert stream.ids.names.to_pylist() == [1, 4, 5, 2, 3]
    assert stream.node_x is not None
    assert stream.node_x[:, 0].tolist() == [3, 12, 15, 6, 9]


def test_ml_layout_without_siblings_or_with_zeros(tmp_path: Path) -> None:
    path = ml_files(tmp_path)
    assert (read_events(path).edge_x, read_events(path).node_x) == (None, None)
    np.save(tmp_path / "ml_tiny.npy", np.zeros((6, 172)))
    np.save(tmp_path / "ml_tiny_node.npy", np.zeros((6, 172)))
    stream = read_events(path)
    assert (stream.edge_x, stream.node_x) == (None, None)
    assert sum("all zero" in note for note in stream.notes) == 2


def test_ml_layout_with_as_many_rows_as_events(tmp_path: Path) -> None:
    stream = read_events(ml_files(tmp_path, rows=5))
    assert stream.edge_x is not None
    assert stream.edge_x[:, 0].tolist() == [0, 4, 2, 6, 8]
    assert any("as many rows as there are events" in note for note in stream.notes)


def test_ml_layout_with_separate_ids(tmp_path: Path) -> None:
    path = ml_files(tmp_path, rows=6, node_rows=6)
    with pytest.raises(DataError, match="some ids name a source and a destination"):
        read_events(path, ids="separate")
    path.write_text(path.read_text().replace("4,3,3,", "4,3,4,"))
    node_x = read_events(path, ids="separate").node_x
    assert node_x is not None
    assert node_x[:, 0].tolist() == [3, 12, 15, 6, 9]


def test_numpy_siblings_are_read_for_ml_layout_only(tmp_path: Path) -> None:
    path = ml_files(tmp_path, rows=6, node_rows=6)
    path.write_text("src,dst,time\na,b,1\n")
    stream = read_events(path)
    assert (stream.edge_x, stream.node_x) == (None, None)


def test_ml_layout_without_its_features(tmp_path: Path) -> None:
    path = ml_files(tmp_path, rows=6)
    assert read_events(path, features="none").edge_x is None


def test_jodie_layout(tmp_path: Path) -> None:
    head = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    stream = read_events(write(tmp_path / "wiki.csv", head + "0,0,0.0,0,0.1,0.2,0.3\n1,0,5.0,1,0.4,0.5,0.6\n"))
    assert (stream.n_nodes, stream.ids.shared, stream.edge_dim, stream.name) == (3, False, 3, "wiki")
    assert stream.label is not None
    assert stream.label.tolist() == [0, 1]
    zeros = read_events(write(tmp_path / "lastfm.csv", head + "0,0,0.0,0,0\n1,0,5.0,1,0\n"))
    assert zeros.edge_x is None
    with pytest.raises(DataError, match="line 3: found 6 fields, expected 7 as in the first row"):
        read_events(write(tmp_path / "bad.csv", head + "0,0,0.0,0,0.1,0.2,0.3\n1,0,5.0,1,0.4,0.5\n"))


def test_labels(tmp_path: Path) -> None:
    text = "src,dst,time,label\na,b,1,0\nb,c,2,\nc,d,3,1\n"
    label = read_events(write(tmp_path / "e.csv", text)).label
    assert label is not None
    assert np.isnan(label[1])
    words = write(tmp_path / "w.csv", "src,dst,time,label\na,b,1,0\nb,c,2,good\n")
    stream = read_events(words)
    assert stream.label is None
    assert any("not read as labels" in note for note in stream.notes)
    with pytest.raises(DataError, match="line 3: the label 'good' is not a number"):
        read_events(words, label="label")
    blank = write(tmp_path / "b.csv", "src,dst,time,label\na,b,1,  \nb,c,2,x\n")
    with pytest.raises(DataError, match="line 3: the label 'x' is not a number"):
        read_events(blank, label="label")


# -------------------- from Python


def test_tables_in_memory() -> None:
    frame = pd.DataFrame({"user": [2, 1], "item": ["x", "y"], "date": pd.to_datetime(["2024-01-02", "2024-01-01"])})
    stream = read_events(frame)
    assert raw(stream) == [("1", "y", "2024-01-01T00:00:00Z"), ("2", "x", "2024-01-02T00:00:00Z")]
    assert read_events(pa.Table.from_pandas(frame)).t.tolist() == stream.t.tolist()
    odd = pd.DataFrame({0: [1, "a"], 1: [2, 3], 2: [0.5, 0.25]})
    assert raw(read_events(odd, src=0, dst=1, time=2)) == [("a", "3", 0.25), ("1", "2", 0.5)]
    zoned = frame.assign(date=frame["date"].dt.tz_localize("Europe/Paris"))
    assert read_events(zoned).time.format_one(read_events(zoned).t[0]) == "2023-12-31T23:00:00Z"
    lists = pa.table({"src": [1, 2], "dst": [3, 4], "t": [0, 1], "features": [[1.0, 2.0], [3.0, 4.0]]})
    edge_x = read_events(lists).edge_x
    assert edge_x is not None
    assert edge_x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match=r"row 1 .*the time is missing"):
        read_events(frame.assign(date=[pd.Timestamp("2024-01-01"), pd.NaT]))
    with pytest.raises(DataError, match="cannot be read from int"):
        read_events(5)


def test_temporal_data() -> None:
    data = SimpleNamespace(
        src=torch.tensor([0, 5]), dst=torch.tensor([5, 7]), t=torch.tensor([3, 1]),
        msg=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), y=torch.tensor([0, 1]),
    )  # fmt: skip
    stream = read_events(data, name="mine")
    assert raw(stream) == [(5, 7, 1), (0, 5, 3)]
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[3, 4], [1, 2]]
    assert stream.label is not None
    assert stream.label.tolist() == [1, 0]
    assert stream.name == "mine"
    bare = SimpleNamespace(src=data.src, dst=data.dst, t=data.t.double())
    assert read_events(bare, ids="separate").n_nodes == 4


NO_PANDAS = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
from cordgt.io.readers import read_events
assert read_events(sys.argv[1]).n_events == 4
"""


def test_files_are_read_without_pandas(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", TEXTS["csv"])
    source = Path(readers.__file__).parents[2]
    subprocess.run([sys.executable, "-c", NO_PANDAS, str(path)], check=True, env={"PYTHONPATH": str(source)})


# -------------------- queries


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("src,dst\na,1\n", (["a"], [1], None)),
        ("a,1\nb,02\n", (["a", "b"], ["1", "02"], None)),
        ("a 1 5\n", (["a"], [1], ["5"])),
        ("a 1\n", (["a"], [1], None)),
        ("time;user;item\n2024-01-01;1;2\n", ([1], [2], ["2024-01-01"])),
        ("src,dst,time,score\n1,2,3,0.5\n", ([1], [2], ["3"])),
    ],
)
def test_pairs(tmp_path: Path, text: str, expected: tuple) -> None:
    found = read_pairs(write(tmp_path / "q", text))
    assert tuple(None if k is None else k.to_pylist() for k in found) == expected


def test_pairs_with_options_and_times(tmp_path: Path) -> None:
    path = write(tmp_path / "q.csv", "a,b,c\nx,5,y\nz,2024-01-01,w\n")
    src, dst, when = read_pairs(path, src="c", dst="a", time="b")
    assert (src.to_pylist(), dst.to_pylist(), when.to_pylist()) == (["y", "w"], ["x", "z"], ["5", "2024-01-01"])
    with pytest.raises(DataError, match=r"q.csv, line 3: the time '2024-01-01' is a date, but"):
        read_pairs(path, src="c", dst="a", time="b", axis=TimeAxis("number"))
    with pytest.raises(DataError, match=r"q.csv, line 2: the time '5' is a number, but an ISO date"):
        read_pairs(path, src="c", dst="a", time="b", axis=TimeAxis("date"))
    with pytest.raises(DataError, match="name it with --time"):
        read_pairs(write(tmp_path / "p.csv", "src,dst,x\na,b,c\n"), need_time=True)
    typed = pa.table({"src": [1], "dst": [2], "time": [7]})
    assert read_pairs(typed, axis=TimeAxis("number"))[2].tolist() == [7]


def test_read_ids(tmp_path: Path) -> None:
    def ids(text: str, column: str | None = None) -> list:
        return read_ids(write(tmp_path / "ids", text), column).to_pylist()

    assert ids("1\n2\n") == [1, 2]
    assert ids("id\n1\nx\n") == ["1", "x"]
    assert ids("Ada Lovelace\nAlan Turing\n") == ["Ada Lovelace", "Alan Turing"]
    assert ids("name,node\nA,5\nB,6\n") == [5, 6]
    assert ids("name,node\nA,5\nB,6\n", "name") == ["A", "B"]
    assert ids("a,5\nb,6\n", "1") == [5, 6]
    assert read_ids(pa.table({"x": [3, 4]})).to_pylist() == [3, 4]
    with pytest.raises(DataError, match=r"no column 'nam'.*Did you mean 'name'"):
        ids("name,node\nA,5\n", "nam")


# -------------------- real files


@pytest.mark.parametrize(
    ("name", "nodes", "events", "width", "positive"),
    [
        ("uci", 1899, 59835, 0, 0),
        ("enron", 184, 125235, 0, 0),
        ("wikipedia", 9227, 157474, 0, 217),
        ("mooc", 7144, 411749, 4, 4066),
        ("lastfm_prefix", 1049, 108501, 0, 0),
        ("socialevo_month", 71, 176090, 0, 0),
        ("gowalla_subset", 75501, 153563, 0, 0),
    ],
)
def test_real_files(data_folder: Path, name: str, nodes: int, events: int, width: int, positive: int) -> None:
    found = list((data_folder / name).glob("ml_*.csv*"))
    if not found:
        pytest.skip(f"{data_folder} has no {name}")
    stream = read_events(found[0])
    assert (stream.name, stream.n_nodes, stream.n_events, stream.edge_dim) == (name, nodes, events, width)
    assert stream.label is not None
    assert int((stream.label > 0).sum()) == positive
    assert stream.t[0] == 0


def test_queries_starting_with_hash_are_not_comments(tmp_path: Path) -> None:
    """An id may start with # or %: every query is read. Only lines before the first row are comments."""
    path = tmp_path / "pairs.csv"
    path.write_text("# asked on Monday\nsrc,dst,time\n#c1,t1,700\nc1,t2,701\n%x,t2,701\n")
    src, dst, _ = read_pairs(path)
    assert src.to_pylist() == ["#c1", "c1", "%x"]
    assert dst.to_pylist() == ["t1", "t2", "t2"]
    path.write_text("id\n#c1\nc2\n")
    assert read_ids(path).to_pylist() == ["#c1", "c2"]
    path.write_text("# asked\n\n# twice\nsrc,dst,time\na,b,700\nc,d,soon\n")
    with pytest.raises(DataError, match="line 6: the time 'soon'"):
        read_pairs(path, axis=TimeAxis("number"))


def test_note_on_numbers_that_look_like_dates(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("src,dst,time\na,b,20240131\na,c,20240201\n")
    assert any("2024-05-31" in note for note in read_events(path).notes)
    path.write_text("src,dst,time\na,b,20240131\na,c,20240299\n")
    assert not any("2024-05-31" in note for note in read_events(path).notes)


def test_note_on_words_for_a_missing_id(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("src,dst,time\na,b,1\nNULL,b,2\nnull,c,3\nNapoleon,c,4\n")
    notes = read_events(path).notes
    assert any("read as node ids: 'NULL', 'null'" in note for note in notes)
    path.write_text("src,dst,time\na,b,1\nNapoleon,c,4\n")
    assert not any("read as node ids" in note for note in read_events(path).notes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("% bip weighted\n% 3 2 2\n1 2 5 1396640000\n2 1 4 1396640060\n", "the first line is '% bip'"),
        ("1::2::5::1396640000\n2::1::4::1396640060\n", "lists separated by '::' are of users and items"),
    ],
)
def test_bipartite_lists_have_two_id_spaces(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    store = convert_to_store(path, tmp_path / "s.store").stream()
    for stream in (read_events(path), store):
        assert not stream.ids.shared
        assert stream.n_nodes == 4
        assert any(note.startswith("two id spaces") and reason in note for note in stream.notes)
    assert read_events(path, ids="shared").n_nodes == 2


@pytest.mark.parametrize("comment", ["% sym weighted\n", "% bipolar\n", "% asym\n% bip\n"])
def test_other_comments_keep_one_id_space(tmp_path: Path, comment: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"{comment}1 2 5 1396640000\n2 1 4 1396640060\n")
    assert read_events(path).n_nodes == 2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [",", "\t", ";", ", "])
@pytest.mark.parametrize("header", [True, False])
def test_carriage_returns_in_quoted_ids_stay(tmp_path: Path, mark: str, end: str, header: bool) -> None:
    rows = [('"a\rb"', '"x ""y"""', "1"), ('"a\nb"', "c", "2"), ("c", '"a\rb"', "3")]
    if header:
        rows.insert(0, ("src", "dst", "time"))
    path = tmp_path / "list.csv"
    path.write_bytes("".join(mark.join(row) + end for row in rows).encode())
    stores = [convert_to_store(path, tmp_path / "s.store").stream()] if end != "\r" else []
    for stream in (read_events(path), *stores):
        assert set(stream.ids.names.to_pylist()) == {"a\rb", "a\nb", 'x "y"', "c"}
    assert read_pairs(path)[0].to_pylist() == ["a\rb", "a\nb", "c"]


def test_the_line_of_an_error_after_a_quoted_carriage_return(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b'src,dst,time\n"a\rb",c,1\nc,d,later\n')
    with pytest.raises(DataError, match="line 3"):
        read_events(path)


def test_messages_about_a_table_in_memory_name_the_arguments_of_python() -> None:
    table = pd.DataFrame({"p": [1, 2], "q": [2, 3], "r": [1, 2]})
    for options, message in (
        ({}, "no column has a usual name for the source; name it with src=. The columns are 'p', 'q', 'r'"),
        ({"src": "p", "dst": "s"}, "no column 's' for dst=."),
        ({"src": "p", "dst": "q", "time": 9}, "no column 9 for time=: it has 3"),
        ({"src": "p", "dst": "p", "time": "r"}, r"name the others too \(src=, dst=, time=\)"),
        ({"src": "p", "dst": "q", "time": "r", "features": "1-9"}, "the range 1-9 for features= is not within"),
    ):
        with pytest.raises(DataError, match=message):
            read_events(table, **options)
