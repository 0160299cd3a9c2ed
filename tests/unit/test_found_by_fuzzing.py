"""Regression tests for bugs that fuzzing found (tests/fuzz): crashes and misread files."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
import time
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.files import read_bytes, read_npy, write_atomically
from cordgt.io.datasets import registry
from cordgt.io.node_features import join_node_features
from cordgt.io.readers import read_events, read_ids, read_pairs
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import from_toml, make_settings, parse_toml


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npy(header: str, body: bytes = b"\0" * 64) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def limited(code: str, *arguments: object) -> str:
    """Run a small program with at most 256 MiB beyond its imports, and return its output."""
    start = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from cordgt.errors import DataError\n"
        "from cordgt.files import read_bytes, read_npy\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28,) * 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", start + code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- text ---


@pytest.mark.parametrize("blank", [" ", "\t", " \t ", "\u00a0", "\x0b"])
def test_blank_line_is_not_an_id(tmp_path: Path, blank: str) -> None:
    assert read_ids(write(tmp_path / "ids.txt", f"7\n{blank}\n8\n")).to_pylist() == [7, 8]
    with pytest.raises(DataError, match="line 3: the id is missing"):
        read_ids(write(tmp_path / "ids.txt", f'7\n{blank}\n""\n'))


def test_byte_order_marks_at_the_start(tmp_path: Path) -> None:
    stream = read_events(write(tmp_path / "e.csv", "\ufeff\ufeffa,b,1\nc,d,2\n"))
    assert stream.ids.names.to_pylist() == ["a", "b", "c", "d"]
    # Elsewhere in the text it belongs to the id, in the first row too.
    stream = read_events(write(tmp_path / "e.csv", "src,dst,time\n\ufeffa,b,1\n\ufeffa,b,2\n"))
    assert stream.ids.names.to_pylist() == ["\ufeffa", "b"]
    with pytest.raises(DataError, match="line 3: the time 'x'"):
        read_events(write(tmp_path / "e.csv", "src,dst,time\n\ufeffa,b,1\n\ufeffa,b,x\n"))


def test_quote_inside_a_field_hides_no_comment(tmp_path: Path) -> None:
    text = 'src,dst,time\na "b,c,1\n# left out, "quoted",9\nb,c,2\n'
    assert read_events(write(tmp_path / "e.csv", text)).ids.names.to_pylist() == ['a "b', "c", "b"]


@pytest.mark.parametrize("mark", [",", ";", "|", "\t"])
def test_spaces_before_a_quote_are_stripped(tmp_path: Path, mark: str) -> None:
    """Otherwise b and "b" would be two nodes."""
    text = 'src, dst, time\n# "x\n"a", "b, c", 1\n  "b, c", d, 2\nd, "a ""e"", f", "3"\n'.replace(", ", f"{mark} ")
    stream = read_events(write(tmp_path / "e.csv", text))
    inside = f"b{mark} c"
    assert stream.ids.names.to_pylist() == ["a", inside, "d", f'a "e"{mark} f']
    assert stream.ids.decode(stream.src).to_pylist() == ["a", inside, "d"]
    assert stream.t.tolist() == [1, 2, 3]


def test_edge_list_keeps_spaces_within_quotes(tmp_path: Path) -> None:
    text = '  "a   b"   c\t1 \n\n\t"d " "a   b"  2\nc "x""  y" 3'
    stream = read_events(write(tmp_path / "e.txt", text))
    assert stream.ids.names.to_pylist() == ["a   b", "c", "d ", 'x"  y']


def test_signaling_nan_raises_without_a_warning(tmp_path: Path) -> None:
    rows = np.zeros((3, 1))
    rows.view(np.uint64)[1] = 0x7FF0000000000001
    np.save(tmp_path / "ml_x.npy", rows)
    path = write(tmp_path / "ml_x.csv", ",u,i,ts,label,idx\n0,1,2,1.0,0,1\n1,1,2,2.0,0,2\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"row 1 .* not a finite number"):
            read_events(path)


def test_long_quoted_text_is_skipped_fast(tmp_path: Path) -> None:
    text = "src,dst,time\n# x\n" + ('a,"' + "b" * 100_000 + '",1\n') * 50
    begun = time.monotonic()
    assert read_events(write(tmp_path / "e.csv", text)).n_events == 50
    assert time.monotonic() - begun < 5


def test_error_location_with_a_field_too_long_for_csv(tmp_path: Path) -> None:
    text = "src,dst,time\n" + "a" * 200_000 + ",b,1\nc,d,x\n"
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\): the time 'x' is not a number"):
        read_events(write(tmp_path / "e.csv", text))


@pytest.mark.parametrize("row", ["1", "1,2", "1,2,3"])
def test_short_rows_in_jodie_layout(tmp_path: Path, row: str) -> None:
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    with pytest.raises(DataError, match=f"line 2: found {len(row.split(','))} fields, expected 4"):
        read_events(write(tmp_path / "e.csv", f"{header}\n{row}\n"))


def test_hexadecimal_is_not_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,time,label\na,b,1,0x1F\n")
    assert read_events(path).label is None
    with pytest.raises(DataError, match="label '0x1F' is not a number"):
        read_events(path, label="label")


def test_wide_table_is_read_fast(tmp_path: Path) -> None:
    n = 20_000
    path = write(
        tmp_path / "e.csv", "src,dst,time," + ",".join(f"x{k}" for k in range(n)) + "\na,b,1" + ",5" * n + "\n"
    )
    begun = time.monotonic()
    assert read_events(path, features="rest").edge_dim == n
    assert time.monotonic() - begun < 10


# --- options ---


@pytest.mark.parametrize("column", ["²", "٣", "9" * 5000])
def test_digits_of_other_scripts_are_not_positions(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "e.csv", "src,dst,time,x\na,b,1,2\n")
    for options in ({"src": column}, {"time": column}, {"features": column}, {"features": f"{column}-3"}):
        with pytest.raises(DataError, match="no column") as caught:
            read_events(path, **options)
        assert len(str(caught.value)) < 1000
    with pytest.raises(DataError, match="no column"):
        read_ids(path, column)


# --- typed tables ---


def test_parquet_with_duplicate_column_names(tmp_path: Path) -> None:
    table = pa.table([[1], [2], [3], [4]], names=["src", "dst", "time", "x"])
    pq.write_table(table.rename_columns(["src", "dst", "time", "time"]), tmp_path / "e.parquet")
    with pytest.raises(DataError, match="2 columns called 'time'"):
        read_events(tmp_path / "e.parquet", time=2)


def test_text_of_another_arrow_type() -> None:
    view = pa.array(["a", "b"], pa.string_view())
    assert read_events(pa.table({"src": view, "dst": view, "time": [1, 2]})).ids.names.to_pylist() == ["a", "b"]


def test_decimal_ids_and_times_are_exact() -> None:
    whole = pa.array([Decimal(2**53 + 1), Decimal(2**53)], pa.decimal128(38, 0))
    stream = read_events(pa.table({"src": whole, "dst": [1, 2], "time": whole}))
    assert stream.ids.names.to_pylist() == [2**53, 2, 2**53 + 1, 1]
    assert stream.t.tolist() == [2**53, 2**53 + 1]
    assert stream.ids.encode(whole).tolist() == [2, 0]
    part = pa.array([Decimal(2**53 + 1), Decimal("1.5")], pa.decimal128(38, 1))
    with pytest.raises(DataError, match=r"row 1 .* the id 1.5 is not a whole number"):
        read_events(pa.table({"src": part, "dst": [1, 2], "time": [1, 2]}))


def test_unsigned_labels_beyond_int64() -> None:
    label = pa.array([2**64 - 1, 1], pa.uint64())
    stream = read_events(pa.table({"src": [1, 2], "dst": [3, 4], "time": [1, 2], "label": label}))
    assert stream.label.tolist() == [float(2**64 - 1), 1.0]
    label = pa.array([2**53 + 1, None], pa.int64())
    stream = read_events(pa.table({"src": [1, 2], "dst": [3, 4], "time": [1, 2], "label": label}))
    assert stream.label[0] == float(2**53 + 1) and np.isnan(stream.label[1])


@pytest.mark.parametrize(
    "when",
    [
        pa.array([0, 2**62], pa.timestamp("us")),
        pa.array([0, -(2**62)], pa.timestamp("us", "UTC")),
        pa.array([0, 2**62], pa.timestamp("ms", "Mars/Olympus")),
        pa.array([0, 2**30], pa.date32()),
        pa.array(["2024-01-01", "0000-01-01T00:00:00+02:00"]),
    ],
)
def test_dates_out_of_range(when: pa.Array) -> None:
    with pytest.raises(DataError, match=r"row 1 .* out of range"):
        read_events(pa.table({"src": [1, 2], "dst": [3, 4], "time": when}))


def test_dates_with_a_time_of_day() -> None:
    when = pa.array([1500], pa.int64()).view(pa.date64())
    assert read_events(pa.table({"src": [1], "dst": [2], "time": when})).t.tolist() == [1_500_000]


def test_dates_of_an_unknown_zone_where_numbers_are_expected() -> None:
    when = pa.array([0], pa.timestamp("us", "Mars/Olympus"))
    with pytest.raises(DataError, match="'1970-01-01T00:00:00Z' is a date, but"):
        read_pairs(pa.table({"src": [1], "dst": [2], "time": when}), axis=TimeAxis("number"))


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    held = io.BytesIO()
    words = pa.array(["wörd"] * 3)
    pq.write_table(pa.table({"src": words, "dst": words, "time": [1, 2, 3]}), held, compression="none")
    path = write(tmp_path / "e.parquet", held.getvalue().replace("ö".encode(), b"\xff\xff"))
    with pytest.raises(DataError, match=r"damaged Parquet file: .*UTF8"):
        read_events(path)


# --- node features ---


def two_sides() -> EventStream:
    return EventStream.from_columns([7, 9], [8, 9], [1, 2], shared_ids=False)


def test_duplicate_node_row_raises_for_any_spelling_of_side(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", "id,side,x\n9,src,1\n9, SRC,2\n")
    with pytest.raises(DataError, match="line 3: the id 9 comes a second time"):
        join_node_features(two_sides(), path)
    one_space = EventStream.from_columns([7, 9], [8, 9], [1, 2])
    with pytest.raises(DataError, match="line 3: the id 9 comes a second time"):
        join_node_features(one_space, write(tmp_path / "n.csv", "id,side,x\n9,src,1\n9,dst,2\n"))


def test_side_column_that_is_not_text() -> None:
    for side in (pa.array([["src"]]), pa.array([1]), pa.array([2**40], pa.timestamp("s"))):
        with pytest.raises(DataError, match="src or dst was expected"):
            join_node_features(two_sides(), pa.table({"id": [9], "side": side, "x": [1.0]}))
    empty = pa.table({"id": pa.array([], pa.int64()), "side": pa.array([], pa.string()), "x": pa.array([], pa.int64())})
    with pytest.raises(DataError, match="None of the 0 ids"):
        join_node_features(two_sides(), empty)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2"), id="open bracket"),
        pytest.param(
            npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999, 2), }"), id="huge"
        ),
        pytest.param(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1099999999989, 2), }"), id="large"),
        pytest.param(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-4, -2), }"), id="negative"),
        pytest.param(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }"), id="more than declared"),
        pytest.param(npy("(" * 4000), id="deep"),
        pytest.param(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2), 'x': 1}"), id="another key"),
        pytest.param(b"PK\x03\x04 no archive", id="archive"),
        pytest.param(b"\x93NUMPY\x09\x09", id="version"),
    ],
)
def test_damaged_arrays(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"x\.npy"):
        read_npy(write(tmp_path / "x.npy", content))


def test_arrays_in_c_and_fortran_order(tmp_path: Path) -> None:
    rows = np.arange(6.0).reshape(2, 3)
    for array in (rows, np.asfortranarray(rows), rows.astype(">f4"), rows > 2, np.zeros((0, 3))):
        np.save(tmp_path / "x.npy", array)
        read = read_npy(tmp_path / "x.npy")
        assert read.dtype == array.dtype and np.array_equal(read, array)


# --- files ---


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_file_larger_than_memory_raises(tmp_path: Path) -> None:
    zeros = gzip.compress(b"0" * (1 << 24), 9)
    path = write(tmp_path / "bomb.gz", zeros * 32)  # 512 MiB
    code = "try:\n    read_bytes(Path(sys.argv[1]))\nexcept DataError as error:\n    print(error)\n"
    assert "does not fit into memory" in limited(code, path)


def test_invalid_file_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\\x00b"):
        read_bytes(tmp_path / "a\0b")
    for name in ("a" * 5000, "./" + "a" * 5000 + ".csv", "~nobody-of-that-name/x.csv"):
        with pytest.raises(DataError, match=r"no file|neither a known dataset nor a file|cannot be read"):
            registry.load_dataset(name)


def test_writing_does_not_change_the_umask(tmp_path: Path) -> None:
    """The umask belongs to the process: a thread that creates a file must not see it change."""
    changed = []
    real = os.umask
    os.umask = lambda mask: changed.append(mask) or real(mask)  # type: ignore[assignment, func-returns-value]
    before = real(0o027)
    try:
        write_atomically(tmp_path / "x", lambda part: None)
        threads = [
            threading.Thread(target=write_atomically, args=(tmp_path / f"y{k}", lambda part: None)) for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.umask = real
        os.umask(before)
    assert changed == []
    assert {oct(p.stat().st_mode & 0o777) for p in tmp_path.iterdir()} == {"0o640"}


# --- streams ---


def test_appending_past_the_longest_span_raises() -> None:
    early = EventStream.from_columns([1], [2], np.array([-(2**62)]))
    with pytest.raises(DataError, match="too far to subtract"):
        early.append([1], [2], np.array([2**62 + 5]))
    assert early.append([1], [2], np.array([2**61])).elapsed[-1] == float(2**62 + 2**61)
    huge = EventStream.from_columns([1], [2], np.array([-1.7e308]))
    with pytest.raises(DataError, match="too far to subtract"):
        huge.append([1], [2], np.array([1.7e308]))


def test_appending_fractions_to_large_integer_times_raises() -> None:
    """As floats, different times would become equal, and cuts would change."""
    stream = EventStream.from_columns([1, 1], [2, 2], np.array([2**60, 2**60 + 1]))
    with pytest.raises(DataError, match="times are fractions"):
        stream.append([1], [2], np.array([2.0**60 + 0.5e3, 2.0**70]).astype(float)[1:])
    small = EventStream.from_columns([1, 1], [2, 2], np.array([5, 6]))
    assert small.append([1], [2], np.array([6.5])).t.tolist() == [5.0, 6.0, 6.5]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    stream = EventStream.from_columns(["a", "b", "a"], ["b", "c", "c"], [1, 2, 3], np.ones((3, 2)), [0, 1, 0])
    stream.with_node_features(np.ones((3, 2))).save(tmp_path)
    return tmp_path


NOT_FINITE = pa.FixedSizeListArray.from_arrays(pa.array([np.nan] * 6, pa.float32()), 2)


def change(folder: Path, name: str, **columns: pa.Array) -> None:
    table = pq.read_table(folder / name)
    for key, values in columns.items():
        table = table.set_column(table.column_names.index(key), key, values)
    pq.write_table(table, folder / name)


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("events.parquet", {"src": pa.array([0.5, 1, 0])}, "damaged"),
        ("events.parquet", {"src": pa.array(["0", "x", "0"])}, "damaged"),
        ("events.parquet", {"label": pa.array(["x", "y", "z"])}, "labels are of the wrong type"),
        ("events.parquet", {"t": pa.array([-(2**62), 0, 2**62 + 5])}, "too far to subtract"),
        ("nodes.parquet", {"id": pa.array(["a", "a", "c"])}, "an id occurs twice"),
        ("nodes.parquet", {"features": NOT_FINITE}, "finite"),
    ],
)
def test_invalid_event_file_of_a_run(saved: Path, name: str, columns: dict[str, pa.Array], message: str) -> None:
    change(saved, name, **columns)
    with pytest.raises(RunError, match=message):
        EventStream.load(saved)


@pytest.mark.parametrize("about", [{"notes": "[" * 100_000}, {"time": "dbte"}, {"name": b"\xff"}, {"notes": "5"}])
def test_event_file_of_a_run_with_damaged_metadata(saved: Path, about: dict[str, str | bytes]) -> None:
    table = pq.read_table(saved / "events.parquet")
    metadata = {**table.schema.metadata, **{key.encode(): value for key, value in about.items()}}
    pq.write_table(table.replace_schema_metadata(metadata), saved / "events.parquet")
    if "name" in about:
        assert EventStream.load(saved).name == "\ufffd"
        return
    with pytest.raises(RunError, match="damaged"):
        EventStream.load(saved)


def test_every_flipped_bit_is_detected(saved: Path) -> None:
    """Pages have checksums, so that no wrong time, label or feature is read from a damaged file."""
    path = saved / "events.parquet"
    whole, before = path.read_bytes(), EventStream.load(saved)
    pages = pq.ParquetFile(path).metadata.row_group(0)
    end = max(pages.column(k).data_page_offset + pages.column(k).total_compressed_size for k in range(5))
    noticed = 0
    for at in range(4, min(end, len(whole))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            after = EventStream.load(saved)
        except RunError:
            noticed += 1
            continue
        for key in ("src", "dst", "t", "label", "edge_x"):
            assert np.array_equal(getattr(after, key), getattr(before, key)), (at, key)
    assert noticed > 100


# --- settings and run folders ---


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a = " + "[" * 50_000, id="deep"),
        pytest.param("epochs = " + "9" * 9000, id="long"),
        pytest.param("seed = 0x" + "f" * 9000, id="long seed"),
        pytest.param("epochs = 0x" + "f" * 9000, id="long and hexadecimal"),
    ],
)
def test_toml_too_deep_or_too_long(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        from_toml(text, "x.toml")
    assert len(str(caught.value)) < 1000
    folder = RunFolder(tmp_path)
    folder.write_text("config.toml", f"format = 1\n{text}\n[data]\n")
    with pytest.raises(RunError, match=r"config.toml is damaged"):
        folder.read_config()


def test_json_too_deep(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_text("metrics.json", "[" * 100_000)
    with pytest.raises(RunError, match=r"metrics.json is damaged"):
        folder.read_metrics()


@pytest.mark.parametrize("seed", ['""', "false", "0.0", "[]"])
def test_invalid_seed_is_not_read_as_zero(seed: str) -> None:
    with pytest.raises(SettingError, match="64-bit integer"):
        from_toml(f"seed = {seed}", "x.toml")


def test_empty_model_name_is_not_the_default() -> None:
    assert parse_toml("", "x.toml").model is None
    with pytest.raises(SettingError, match="no model ''"):
        from_toml('model = ""', "x.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("epochs", 10**400, id="400 digits"),
        pytest.param("epochs", 2**63, id="64 bits"),
        pytest.param("eval_seed", -(2**63) - 1, id="negative"),
        pytest.param("fanout", {"3": 1}, id="table"),
        pytest.param("lr", 16**9000, id="thousands of digits"),
    ],
)
def test_numbers_out_of_machine_range(key: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"{key}=.*expected") as caught:
        make_settings("cordgt", {key: value})
    assert len(str(caught.value)) < 1000
