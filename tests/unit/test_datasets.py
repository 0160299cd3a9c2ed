"""Datasets by name: search order, errors, and the paper's settings."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cordgt.errors import DataError
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import TWINS
from cordgt.models.presets import published_settings

TINY = ",u,i,ts,label,idx\n0,1,2,0.0,0,1\n1,2,3,1.0,0,2\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary working folder, data folder and cache."""
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def put(folder: Path, name: str, *, zipped: bool = False) -> Path:
    path = folder / name / f"ml_{name}.csv{'.gz' if zipped else ''}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(TINY.encode()) if zipped else TINY.encode())
    return path


def test_data_folder_is_searched_before_the_cache(elsewhere: Path) -> None:
    cached = put(elsewhere / "cache" / "cordgt", "uci", zipped=True)
    assert registry.resolve_path("uci") == cached
    zipped = put(elsewhere / "data", "uci", zipped=True)
    assert registry.resolve_path("uci") == zipped
    plain = put(elsewhere / "data", "uci")
    assert registry.resolve_path("uci") == plain


def test_only_the_cache_is_searched_without_cordgt_data(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(elsewhere / "data", "uci")
    monkeypatch.delenv("CORDGT_DATA")
    with pytest.raises(DataError, match=r"uci was not found: looked for .*cache.*CORDGT_DATA is not set"):
        registry.resolve_path("uci")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(elsewhere))
    assert registry.cache_folder() == elsewhere / ".cache" / "cordgt"


EVENTS, NODES, OTHERS = "src,dst,time\na,b,1\nb,c,2\n", "id,age\na,3\n", "buyer,thing,day\na,b,1\nb,c,2\n"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"log.csv": EVENTS, "nodes.csv": NODES}, {}, r"log.csv in it looks like events: `.* describe some/log.csv`.$"),
        (
            {"b.csv": EVENTS, "a.tsv": EVENTS},
            {},
            r"a.tsv, b.csv look .* some/a.tsv`.*convert some some.store`.$",
        ),
        ({"a.csv": EVENTS, "b.csv": EVENTS, "c.csv": NODES}, {}, r"a.csv, b.csv look .* describe some/a.csv`.$"),
        ({f"{k}.csv": EVENTS for k in "abcde"}, {}, "a.csv, b.csv, c.csv and 2 more look"),
        (
            {"log.csv": OTHERS},
            {"src": "buyer", "dst": "thing", "time": "day"},
            "log.csv --src buyer --dst thing --time",
        ),
        ({"nodes.csv": NODES}, {}, r"None of its files looks like events: some/nodes.csv has 2 columns; .* with --src"),
        ({"read.me": "words"}, {}, "is a folder; a file was expected. some holds no table"),
        ({}, {}, "some holds no table"),
    ],
)
def test_folder_error_suggests_its_files(files: dict[str, str], options: dict[str, str], message: str) -> None:
    Path("some").mkdir()
    for name, text in files.items():
        (Path("some") / name).write_text(text.replace(",", "\t") if name.endswith("tsv") else text)
    with pytest.raises(DataError, match=message):
        registry.load_dataset("some", **options)


def test_resolve_name_or_path(elsewhere: Path) -> None:
    known = put(elsewhere / "data", "uci")
    other = put(elsewhere / "data", "my_calls")
    for name in ("uci", "my_calls", "events", "events.csv", "enron"):
        Path(name).write_text("1 2 3\n")
    assert registry.resolve_path("uci") == known
    assert registry.resolve_path("my_calls") == other
    assert registry.resolve_path("./uci") == Path("uci")
    assert registry.resolve_path("events") == Path("events")
    assert registry.resolve_path("events.csv") == Path("events.csv")
    assert registry.resolve_path(elsewhere / "here" / "events") == elsewhere / "here" / "events"
    with pytest.raises(DataError, match=r"enron was not found.*write \./enron"):
        registry.resolve_path("enron")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("ucii", r"neither a known dataset nor a file. Did you mean 'uci'\? Looked for the file ucii, and for .*data"),
        ("my_cals", "Did you mean 'my_calls'"),
        ("fod-twin", "Did you mean 'food-twin'"),
        ("evnts.csv", r"no file evnts.csv. Did you mean 'events.csv'"),
        ("nowhere/events.csv", "no file nowhere"),
        ("", "No data is named"),
    ],
)
def test_missing_data_suggests_the_nearest_name(elsewhere: Path, data: str, message: str) -> None:
    put(elsewhere / "data", "my_calls")
    Path("events.csv").write_text("1 2 3\n")
    with pytest.raises(DataError, match=message):
        registry.resolve_path(data)


def test_settings_of_the_paper() -> None:
    assert published_settings("uci") == {"fanout": (32, 1), "alpha": 0.1, "beta": 1.0}
    assert published_settings("lastfm") == {"fanout": (32, 1), "alpha": 1.0, "beta": 0.1}
    assert published_settings("enron") == {"fanout": (20, 1), "alpha": 1.0, "beta": 10.0}
    assert published_settings("mooc") == {}
    assert published_settings("uci", "tgn") == {"memory_dim": 32}
    assert published_settings("wikipedia", "jodie") == {"memory_dim": 172}
    assert published_settings("uci", "edgebank") == {}
    assert published_settings("enron", "tgsrec") == {"num_embeddings": 184}
    assert published_settings("mooc", "tgsrec") == {}
    assert published_settings("mooc", "dygformer") == {"max_seq_len": 256, "patch_size": 8}
    assert published_settings("uci", "dygformer") == {"max_seq_len": 32, "patch_size": 1}
    assert published_settings("uci", "graphmixer") == {}  # no preset: the defaults
    assert published_settings("gowalla_subset") == {}


def test_list_datasets(elsewhere: Path) -> None:
    path = put(elsewhere / "data", "my_calls")
    (elsewhere / "data" / "notes").mkdir()
    rows = {row.name: row for row in registry.list_datasets()}
    assert len(rows) == len(registry.KNOWN_DATASETS) + len(TWINS) + 1
    assert rows["food-twin"] == registry.DatasetEntry("food-twin", 673858, 2708688, None, is_generated=True)
    assert rows["reddit"] == registry.DatasetEntry("reddit", 10984, 672447, None)
    assert rows["mooc"] == registry.DatasetEntry("mooc", 7144, 411749, None)
    assert rows["my_calls"] == registry.DatasetEntry("my_calls", None, None, path)


def test_note_if_a_dataset_differs_from_the_published_one(elsewhere: Path) -> None:
    put(elsewhere / "data", "uci")
    put(elsewhere / "data", "my_calls")
    notes = registry.load_dataset("uci").notes
    assert any("not uci as published: 3 nodes (published: 1899), 2 links (published: 59835)" in k for k in notes)
    assert not any("published" in note for note in registry.load_dataset("my_calls", features="none").notes)


@pytest.mark.parametrize("name", ["uci", "enron", "mooc"])
def test_real_datasets_match_published_statistics(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CORDGT_DATA", str(data_folder))
    if registry.find_dataset(name) is None:
        pytest.skip(f"{data_folder} has no {name}")
    stream = registry.load_dataset(name)
    assert stream.name == name
    assert registry.describe_difference(name, stream) == ""


def test_synthetic_stream_by_name(elsewhere: Path) -> None:
    Path("synthetic").write_text("1 2 3\n")
    assert registry.load_dataset("synthetic").n_events == 12_000
    assert registry.load_dataset("./synthetic", features="none").n_events == 1
