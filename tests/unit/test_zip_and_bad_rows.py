"""Zip archives, fields separated by ``::``, and bad rows that are skipped and counted."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.io import zip_files
from cordgt.io.convert import append_to, as_stream, convert_to_store
from cordgt.io.readers import read_events

TEXT = "src,dst,time\na,b,1\nb,c,2\nc,a,3\n"


def zipped(path: Path, files: dict[str, str | bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in files.items():
            archive.writestr(name.rstrip("*"), content)
    return path


def both(path: Path, target: Path, **options: object) -> list[list[object]]:
    """Return the times and ids as read at once and in chunks."""
    streams = [read_events(path, **options), convert_to_store(path, target, **options).stream()]
    return [[k.t.tolist(), k.ids.names.to_pylist()] for k in streams]


# -------------------- zip


def test_zip_of_one_file(tmp_path: Path) -> None:
    path = zipped(tmp_path / "mine.zip", {"folder/": "", "folder/e.csv": TEXT, "__MACOSX/folder/._e.csv": b"\0"})
    first, second = both(path, tmp_path / "s.store")
    assert first == second == [[1, 2, 3], ["a", "b", "c"]]
    assert read_events(path).name == "mine"
    assert as_stream(path).n_events == 3
    later = zipped(tmp_path / "later.zip", {"e.csv": "src,dst,time\na,d,4\n"})
    assert append_to(tmp_path / "s.store", later).n_events == 4


def test_zip_of_several_files(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"ml/ratings.csv": TEXT, "ml/README.txt": "hello", "other/ratings.csv": TEXT}
    path = zipped(tmp_path / "ml.zip", files)
    for read in (read_events, lambda source, **k: convert_to_store(source, tmp_path / "s.store", **k)):
        with pytest.raises(DataError, match=r"has 3 files: ml/ratings.csv.*--member ml/ratings.csv"):
            read(path)
        with pytest.raises(DataError, match=r"2 files called ratings.csv. Name one with its path"):
            read(path, member="ratings.csv")
        with pytest.raises(DataError, match=r"no file ml/rating.csv for --member.* Did you mean 'ml/ratings.csv'"):
            read(path, member="ml/rating.csv")
    first, second = both(path, tmp_path / "s.store", member="ml/ratings.csv")
    assert first == second == [[1, 2, 3], ["a", "b", "c"]]


def test_member_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text(TEXT)
    for read in (read_events, lambda source, **k: convert_to_store(source, tmp_path / "s.store", **k)):
        with pytest.raises(DataError, match=r"--member names a file in a zip archive, but .*e.csv is not one"):
            read(path, member="e.csv")
    with pytest.raises(DataError, match="not in DataFrame"):
        read_events(pd.DataFrame({"src": [1]}), member="e.csv")


def test_zip_that_is_damaged_large_or_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "src,dst,time\n" + "".join(f"a{k * 7919 % 9973},b,{k}\n" for k in range(3000))
    good = zipped(tmp_path / "good.zip", {"e.csv": text}).read_bytes()
    path = tmp_path / "bad.zip"
    for data in (good[: len(good) // 2], good[:-1], good[:2000] + b"xxxx" + good[2004:]):
        path.write_bytes(data)
        for read in (read_events, lambda source: convert_to_store(source, tmp_path / "s.store")):
            with pytest.raises(DataError, match=r"bad.zip is a damaged or incomplete zip archive"):
                read(path)
        assert not (tmp_path / "s.store").exists()
    odd = {
        "two files e.csv": {"e.csv": TEXT, "e.csv*": TEXT},
        "an Office document": {"[Content_Types].xml": "<x/>", "xl/sheet.xml": "<x/>"},
        "bad.zip is a zip archive without a file to read": {"folder/": ""},
        "bad.zip is a zip archive without a file": {},
        "bad.zip contains a zip archive, in/good.zip. Unpack it first": {"in/good.zip": good},
    }
    for message, files in odd.items():
        zipped(path, files)
        for read in (read_events, lambda source: convert_to_store(source, tmp_path / "s.store")):
            with pytest.raises(DataError, match=message):
                read(path)
    monkeypatch.setattr(zip_files, "MAX_BYTES", 20)
    with pytest.raises(DataError, match=r"claims .* bytes unpacked; the limit is 20"):
        read_events(zipped(path, {"e.csv": TEXT}))


def test_compressed_parquet(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"src": [1, 2], "dst": [2, 3], "time": [1, 2]}), buffer)
    path = zipped(tmp_path / "e.zip", {"e.parquet": buffer.getvalue()})
    assert read_events(path).n_events == 2
    (tmp_path / "e.gz").write_bytes(gzip.compress(buffer.getvalue()))
    for compressed in (path, tmp_path / "e.gz"):
        with pytest.raises(DataError, match=r"is a compressed Parquet file. Unpack it first"):
            convert_to_store(compressed, tmp_path / "s.store")


def test_double_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(k % 7 + 1, k % 5 + 1, k % 5 + 1, 978_300_000 + 60 * k) for k in range(40)]
    path = tmp_path / "ratings.dat"
    path.write_text("".join("::".join(map(str, row)) + "\n" for row in rows))
    for module in ("event_chunks", "file_chunks"):
        monkeypatch.setattr(f"cordgt.io.{module}.HEAD_BYTES", 200)
    first, second = both(path, tmp_path / "s.store")
    assert first == second
    assert first[0] == [row[3] for row in rows]
    path.write_text("src,dst,time\nstd::a,std::b,1\nstd::b,std::c::d,2\n")  # double colons in ids
    assert read_events(path).ids.names.to_pylist() == ["std::a", "std::b", "std::c::d"]


# -------------------- bad rows

BAD = {
    "a,b\n": "line {}: found 2 fields, expected 4",
    "a,b,soon,1\n": "line {}: the time 'soon' is not a number",
    ",b,5,1\n": "line {}: the id is missing",
    "a,b,5,red\n": "line {}: the feature 'red' in column 'w' is not a finite number",
    '"a\nb",b,never,1\n': "line {}: the time 'never' is not a number",
    "a,b,2024-01-01,1\n": "line {}: the time '2024-01-01' is a date",
    "a,b,nan,1\n": "line {}: the time 'nan' is not a finite number",
}


@settings(max_examples=20)
@given(st.lists(st.sampled_from([None, *BAD]), max_size=12))
def test_bad_rows_are_left_out_and_counted(tmp_path_factory: pytest.TempPathFactory, drawn: list[str | None]) -> None:
    folder = tmp_path_factory.mktemp("bad")
    text, times, messages, t = "# c\nsrc,dst,time,w\n", [], [], 0
    for bad in [None, *drawn, *[None] * len(drawn)]:  # the first plausible time decides the kind
        if bad is None:
            t += 1
            times.append(t)
            text += f"n{t},n{t + 1},{t},0.5\n"
        else:
            messages.append(BAD[bad].format(text.count("\n") + 1))
            text += bad
    path = folder / "e.csv"
    path.write_text(text)
    if messages:
        with pytest.raises(DataError):
            read_events(path, features="w")
    stream = read_events(path, features="w", skip_bad_rows=True)
    store = convert_to_store(path, folder / "s.store", features="w", skip_bad_rows=True)
    for found in (stream, store.stream()):
        assert found.t.tolist() == times
        notes = [note for note in found.notes if "--skip-bad-rows" in note]
        assert len(notes) == bool(messages)
        if messages:
            assert notes[0].startswith(f"{len(messages)} bad row")
            assert all(message in notes[0] for message in messages[:5])
            assert (f"and {len(messages) - 5} more" in notes[0]) == (len(messages) > 5)


def test_first_time_may_be_bad(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src,dst,time\na,b,?\na,b,25/01/2024\nb,c,26/01/2024\n")
    first, second = both(path, tmp_path / "s.store", skip_bad_rows=True)
    assert first == second
    assert len(first[0]) == 2  # type: ignore[arg-type]


def test_more_than_half_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src,dst,time\na,b,1\n" + "a,b,x\n" * 2)
    for read in (read_events, lambda source, **k: convert_to_store(source, tmp_path / "s.store", **k)):
        with pytest.raises(DataError, match=r"2 of 3 rows are bad, which is more than half. The first: line 3"):
            read(path, skip_bad_rows=True)


def test_bad_rows_of_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "src": ["a", None, "c", "d", "e", "f", "g"],
            "dst": ["b", "b", "b", "", "b", "b", "b"],
            "time": [1.0, 2.0, np.nan, 4.0, np.inf, 6.0, 7.0],
            "w": [0.0, 0.0, 0.0, 0.0, 0.0, np.nan, 1.0],
        }
    )
    frame = pd.concat([frame, frame.iloc[[0, 6] * 3]])
    stream = read_events(frame, features="w", skip_bad_rows=True)
    assert stream.t.tolist() == [1, 1, 1, 1, 7, 7, 7, 7]
    note = next(k for k in stream.notes if "--skip-bad-rows" in k)
    assert note.startswith("5 bad rows skipped")
    assert "row 1 (counted from 0): the id is missing" in note
    assert "row 5 (counted from 0): the feature in column 'w' is missing" in note
    path = tmp_path / "e.parquet"
    frame.to_parquet(path)
    store = convert_to_store(path, tmp_path / "s.store", features="w", skip_bad_rows=True).stream()
    assert store.t.tolist() == stream.t.tolist()
    assert note in store.notes


def test_appended_rows_are_skipped_only_if_asked(tmp_path: Path) -> None:
    path, later = tmp_path / "e.csv", tmp_path / "later.csv"
    path.write_text(TEXT)
    convert_to_store(path, tmp_path / "s.store", skip_bad_rows=True)
    later.write_text("src,dst,time\na,b,8\na,b,x\nb,c,9\n")
    with pytest.raises(DataError, match="line 3: the time 'x'"):
        append_to(tmp_path / "s.store", later)
    assert any("1 bad row skipped" in k for k in append_to(tmp_path / "s.store", later, skip_bad_rows=True).notes)
