"""Data frames, graphs and datasets of other libraries: into streams, out of streams, and back unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cordgt
from cordgt.errors import DataError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.io.convert import append_to, convert_to_store
from cordgt.io.datasets.registry import load_dataset
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.io.readers import read_events
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.run_folder import fingerprint, ids_fingerprint


def need(module: str) -> Any:
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install it to run this test")


def facts(stream: EventStream) -> tuple[Any, ...]:
    """Everything that a stream is: the fingerprints, and what they do not cover."""
    label = None if stream.label is None else (stream.label.dtype, stream.label.tobytes())
    side = None if stream.ids.side is None else stream.ids.side.tolist()
    return fingerprint(stream), ids_fingerprint(stream), stream.t.dtype, label, side, stream.edge_dim, stream.node_dim


# -------------------- round trips


def through_arrow(stream: EventStream) -> EventStream:
    return read_events(stream.to_arrow(), node_features=node_features(stream))


def through_pandas(stream: EventStream) -> EventStream:
    return read_events(stream.to_pandas(), node_features=node_features(stream))


def through_polars(stream: EventStream) -> EventStream:
    need("polars")
    return read_events(stream.to_polars(), node_features=node_features(stream), **stream.read_options)


def through_temporal_data(stream: EventStream) -> EventStream:
    need("torch_geometric")
    return read_events(stream.to_temporal_data())


def node_features(stream: EventStream) -> Any:
    return None if stream.node_x is None else stream.node_table()


ROUND_TRIPS = [through_arrow, through_pandas, through_polars, through_temporal_data]
RNG = np.random.default_rng(0)
TEXT = {"src": ["b", "007", "a", "b"], "dst": ["a", "a", "None", "x y"]}
NUMBERS = {"src": [5, 2, 5, 2**40], "dst": [2, 5, 7, 5]}
TIES = [3, 1, 1, 3]
DATES = ["2024-03-01T12:30:00.000001Z", "2024-02-29", "1969-01-01", "2024-02-29"]
STREAMS: dict[str, Callable[[], EventStream]] = {
    "text ids": lambda: EventStream.from_columns(**TEXT, t=TIES, name="text"),
    "number ids": lambda: EventStream.from_columns(**NUMBERS, t=[0.5, 0.25, 0.25, 1e9]),
    "whole fractions": lambda: EventStream.from_columns(**NUMBERS, t=[1.0, 2.0, 3.0, 4.0]),
    "nanoseconds": lambda: EventStream.from_columns(**NUMBERS, t=[2**62, 2**62 + 1, 2**62 + 1, 2**62 + 2]),
    "separate ids": lambda: EventStream.from_columns(**NUMBERS, t=TIES, shared_ids=False),
    "dates": lambda: EventStream.from_columns(**TEXT, t=DATES),
    "features": lambda: EventStream.from_columns(**NUMBERS, t=TIES, edge_x=RNG.normal(size=(4, 3))),
    "labels": lambda: EventStream.from_columns(**NUMBERS, t=TIES, label=[0, 1, 1, 0]),
    "missing labels": lambda: EventStream.from_columns(**NUMBERS, t=TIES, label=[0, None, 1, 0.5]),
    "node features": lambda: with_node_features(EventStream.from_columns(**NUMBERS, t=TIES)),
    "node features of two sides": lambda: with_node_features(
        EventStream.from_columns(**TEXT, t=TIES, shared_ids=False, edge_x=RNG.normal(size=(4, 1)), label=[1, 0, 1, 0])
    ),
    "generated": lambda: synthetic_stream(nodes=30, events=300).stream,
    "a slice": lambda: synthetic_stream(nodes=30, events=300).stream[100:200],
}  # fmt: skip


def with_node_features(stream: EventStream) -> EventStream:
    return stream.with_node_features(RNG.normal(size=(stream.n_nodes, 2)))


@pytest.mark.parametrize("trip", ROUND_TRIPS, ids=lambda trip: trip.__name__.removeprefix("through_"))
@pytest.mark.parametrize("kind", STREAMS)
def test_round_trip(kind: str, trip: Callable[[EventStream], EventStream]) -> None:
    stream = STREAMS[kind]()
    again = trip(stream)
    assert facts(again) == facts(stream)
    if trip is not through_polars:
        assert again.name == stream.name


@pytest.mark.parametrize("trip", ROUND_TRIPS, ids=lambda trip: trip.__name__.removeprefix("through_"))
def test_round_trip_of_a_store(tmp_path: Path, trip: Callable[[EventStream], EventStream]) -> None:
    convert_to_store(STREAMS["node features of two sides"](), tmp_path / "s")
    stream = read_events(tmp_path / "s")
    assert facts(trip(stream)) == facts(stream)


DATASETS = (
    """canparl enron gowalla_subset lastfm_prefix mooc retrosheet socialevo_month uci uslegis wikipedia""".split()
)


@pytest.mark.parametrize("name", DATASETS)
def test_round_trip_of_real_data(data_folder: Path, name: str) -> None:
    parquet = data_folder / name / f"{name}.parquet"
    if not (data_folder / name).is_dir():
        pytest.skip(f"{data_folder} has no {name}")
    if parquet.exists():
        stream = read_events(parquet, src="batter", dst="pitcher", label="hit", features="inning")
        stream = stream[-1_000_000:]  # of 4.6 million events, to save time
    else:
        stream = load_dataset(name)
    expected = facts(stream)
    for trip in ROUND_TRIPS:
        assert facts(trip(stream)) == expected, trip.__name__


# -------------------- names of columns


def test_a_round_trip_keeps_column_names() -> None:
    frame = pd.DataFrame(
        {"giver": ["a", "b"], "taker": ["b", "b"], "price": [1.5, 2], "sent": [1, 2], "good": [0, 1], "size": [3, 4]}
    )
    options = {"src": "giver", "dst": "taker", "time": "sent", "label": "good", "features": ["size", "price"]}
    stream = read_events(frame, ids="separate", **options)
    assert stream.columns == options
    for table in (stream.to_arrow(), stream.to_pandas()):
        again = read_events(table)
        assert facts(again) == facts(stream)
        assert again.to_arrow().column_names == ["giver", "taker", "sent", "good", "size", "price"]
    assert stream.read_options == options | {"ids": "separate"}
    sliced = stream[1:]
    assert sliced.to_pandas()["giver"].tolist() == ["b"]


def test_usual_names_are_kept_too(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("from,to,ts\na,b,1\n")
    stream = read_events(tmp_path / "e.csv")
    assert stream.to_arrow().column_names == ["from", "to", "ts"]
    assert stream.columns == {}  # nothing was given: another file may have other usual names
    (tmp_path / "f.csv").write_text("a 1 b\nb 2 c\n")
    stream = read_events(tmp_path / "f.csv", time=1)
    assert stream.to_arrow().column_names == ["src", "dst", "time"]  # a file without a header
    assert stream.columns == {"time": "1"}
    assert facts(read_events(stream.to_arrow(), **stream.read_options)) == facts(stream)


def test_names_that_collide_become_the_usual_ones() -> None:
    stream = read_events(pd.DataFrame({"feature_0": [1], "dst": [2], "time": [3], "x": [4.0]}), src="feature_0")
    table = pa.table({"src": [1], "feature_1": [2], "time": [3], "features": [[4.0, 5.0]]})
    lists = read_events(table, dst="feature_1")
    assert stream.to_arrow().column_names == ["feature_0", "dst", "time"]
    assert lists.to_arrow().column_names == ["src", "dst", "time", "feature_0", "feature_1"]


def test_options_win_over_those_of_the_export() -> None:
    stream = EventStream.from_columns(["a"], ["b"], [1], edge_x=[[2.0]], name="old")
    frame = stream.to_pandas()
    assert read_events(frame, src="dst", dst="src").ids.names.to_pylist() == ["b", "a"]
    assert read_events(frame, features="none", name="new").edge_x is None
    assert read_events(frame, ids="separate").ids.shared is False
    renamed = frame.rename(columns={"src": "who", "dst": "whom", "feature_0": "x"})
    with pytest.raises(DataError, match="no column has a usual name for the source"):
        read_events(renamed)
    assert read_events(frame.drop(columns="feature_0")).edge_x is None


def test_damaged_metadata_of_an_export_is_ignored() -> None:
    table = pa.table({"src": [1], "dst": [2], "time": [3]})
    for text in ("{", "[1]", '{"options": 5}', '{"options": {"src": 7, "ids": "wrong"}}', '{"options": {"src": "no"}}'):
        assert read_events(table.replace_schema_metadata({"cordgt": text})).n_events == 1


def test_streams_in_run_folders_and_stores_remember_their_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"giver": ["a", "b"], "taker": ["b", "c"], "time": [1, 2]})
    stream = read_events(frame, src="giver", dst="taker")
    stream.save(tmp_path)
    loaded = EventStream.load(tmp_path)
    assert (loaded.columns, loaded.column_names) == (stream.columns, stream.column_names)
    convert_to_store(stream, tmp_path / "store")
    assert read_events(tmp_path / "store").columns == {"src": "giver", "dst": "taker"}
    frame.assign(time=[3, 4]).to_csv(tmp_path / "later.csv", index=False)
    assert append_to(tmp_path / "store", tmp_path / "later.csv").n_events == 4


def test_a_run_reads_later_events_with_the_columns_of_its_stream(tmp_path: Path) -> None:
    frame = pd.DataFrame({"giver": list("abcd") * 20, "taker": list("bcda") * 20, "time": range(80), "t": 0})
    stream = read_events(frame, src="giver", dst="taker", time="time")
    run = cordgt.train(stream, "counts", epochs=1, out=tmp_path / "run", device="cpu", report=False)
    assert run.columns == {"src": "giver", "dst": "taker", "time": "time"}
    assert run.with_events(frame.assign(time=frame["time"] + 80)).stream.n_events == 160
    assert run.with_events(one_shot(frame.assign(time=frame["time"] + 80))).stream.n_events == 160


# -------------------- what can be read


def one_shot(frame: pd.DataFrame) -> pa.RecordBatchReader:
    """An Arrow stream that can be read only once."""
    return pa.Table.from_pandas(frame).to_reader()


FRAME = pd.DataFrame({"user": ["ann", "bob"], "item": ["x", "ann"], "time": [2, 1], "feature_0": [0.5, 1.5]})


def test_anything_with_an_arrow_stream() -> None:
    table = pa.Table.from_pandas(FRAME)

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    expected = facts(read_events(FRAME))
    for source in (table, table.to_batches()[0], Frame(), one_shot(FRAME)):
        assert facts(read_events(source)) == expected


def test_an_error_in_an_arrow_stream_is_explained() -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise RuntimeError("the query failed")

    with pytest.raises(DataError, match="The Frame cannot be read as an Arrow table: the query failed"):
        read_events(Frame())


def test_polars() -> None:
    pl = need("polars")
    frame = pl.from_pandas(FRAME)
    assert facts(read_events(frame)) == facts(read_events(frame.lazy())) == facts(read_events(FRAME))
    with pytest.raises(DataError, match=r"The LazyFrame cannot be read.*nowhere"):
        read_events(frame.lazy().select("nowhere"))
    dates = frame.with_columns(
        time=pl.Series(["2024-01-02", "2024-01-01"]).str.to_date(), user=pl.col("user").cast(pl.Categorical)
    )
    stream = read_events(dates)
    assert stream.to_polars()["time"].dtype == pl.Datetime("us", "UTC")
    assert stream.ids.names.to_pylist() == ["bob", "ann", "ann", "x"]
    lists = frame.select("user", "item", "time", features=pl.concat_list("feature_0", "time").list.to_array(2))
    assert read_events(lists).edge_dim == 2
    with pytest.raises(DataError, match=r"row 1 .*the id is missing \(column 'user'\)"):
        read_events(pl.DataFrame({"user": ["a", None], "item": ["b", "b"], "time": [1, 2]}))


def test_duckdb() -> None:
    duckdb = need("duckdb")
    con = duckdb.connect()
    con.register("frame", pa.Table.from_pandas(FRAME))
    relation = con.sql("select * from frame")
    assert facts(read_events(relation)) == facts(read_events(FRAME))
    renamed = con.sql("select user as who, item, time from frame order by time")
    assert read_events(renamed, src="who", ids="separate").ids.names.to_pylist() == ["bob", "ann", "ann", "x"]


def test_networkx() -> None:
    nx = need("networkx")
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", time=2, price=1.0)
    graph.add_edge("b", "a", time=1, price=2.0)
    graph.add_edge("a", "b", time=0, price=3.0)
    stream = read_events(graph, features="price")
    assert stream.ids.names.to_pylist() == ["a", "b"]
    assert (stream.t.tolist(), stream.src.tolist()) == ([0, 1, 2], [0, 1, 0])
    assert stream.edge_x is not None
    assert stream.edge_x[:, 0].tolist() == [3, 2, 1]
    with pytest.raises(DataError, match=r"no column 'when' for time=.*'src', 'dst', 'time', 'price'"):
        read_events(graph, time="when")
    graph.add_edge("a", "c", price=1.0)
    with pytest.raises(DataError, match="the time is missing"):
        read_events(graph)
    undirected = nx.MultiGraph([(1, 2, {"date": "2024-01-01"}), (1, 2, {"date": "2024-01-03"})])
    assert read_events(undirected).time == TimeAxis("date")
    with pytest.raises(DataError, match=r"The node \(1, 2\) of the graph cannot be a node id"):
        read_events(nx.MultiGraph([((1, 2), 3, {"time": 1})]))
    with pytest.raises(DataError, match="Rename it"):
        read_events(nx.MultiGraph([(1, 2, {"time": 1, "src": 5})]))
    with pytest.raises(DataError, match="The graph has no edges"):
        read_events(nx.MultiGraph())


def tgb_data() -> dict[str, Any]:
    sources, destinations = np.array([3, 1, 3]), np.array([4, 5, 4])
    return {
        "sources": sources, "destinations": destinations, "timestamps": np.array([10, 20, 20]),
        "edge_idxs": np.arange(3), "edge_feat": np.ones((3, 2)), "w": np.ones(3), "edge_label": np.ones(3),
    }  # fmt: skip


def check_tgb(dataset: Any) -> None:
    stream = read_events(dataset)
    assert (stream.name, stream.n_events, stream.edge_dim, stream.label) == ("tgbl-mine", 3, 2, None)
    assert stream.ids.names.to_pylist() == [3, 4, 1, 5]
    assert stream.node_x is not None
    assert stream.node_x[:, 0].tolist() == [3, 4, 1, 5]
    with pytest.raises(DataError, match="no columns to choose from, so leave out 'time'"):
        read_events(dataset, time="ts")


def test_py_tgb_datasets() -> None:
    dataset = SimpleNamespace(name="tgbl-mine", full_data=tgb_data(), node_feat=np.arange(6.0)[:, None])
    check_tgb(dataset)


def test_py_tgb_itself() -> None:
    """The library's own classes, without their download."""
    module = need("tgb.linkproppred.dataset")
    dataset = object.__new__(module.LinkPropPredDataset)
    dataset.name, dataset._full_data, dataset._node_feat = "tgbl-mine", tgb_data(), np.arange(6.0)[:, None]
    check_tgb(dataset)
    of_pyg = object.__new__(need("tgb.linkproppred.dataset_pyg").PyGLinkPropPredDataset)
    of_pyg.dataset = dataset
    check_tgb(of_pyg)


def test_temporal_data_is_the_real_one() -> None:
    torch, data_module = need("torch"), need("torch_geometric.data")
    data = data_module.TemporalData(
        src=torch.tensor([0, 5]), dst=torch.tensor([5, 7]), t=torch.tensor([3, 1]), msg=torch.tensor([1.0, 2.0])
    )
    stream = read_events(data)
    assert stream.ids.names.to_pylist() == [5, 7, 0]
    assert stream.edge_x is not None
    assert stream.edge_x.tolist() == [[2], [1]]
    with pytest.raises(DataError, match="A TemporalData has no columns to choose from, so leave out 'src'"):
        read_events(data, src="src")
    with pytest.raises(DataError, match="leave out 'skip_bad_rows'"):
        read_events(data, skip_bad_rows=True)


def test_parts_of_temporal_data() -> None:
    need("torch_geometric")
    stream = with_node_features(EventStream.from_columns(**TEXT, t=["2024-01-01", "2024-01-02"] * 2, shared_ids=False))
    data = stream.to_temporal_data()
    assert data.msg.shape == (4, 0)
    assert facts(read_events(data[1:3])) == facts(stream[1:3])
    assert facts(read_events(data.to("cpu"))) == facts(stream)
    with pytest.raises(DataError, match="made from a stream with two id spaces; leave out ids"):
        read_events(data, ids="shared")
    data.src[0] = 99
    with pytest.raises(DataError, match=r"In the TemporalData: .*the id is missing"):
        read_events(data)


IMPORTS_NOTHING = """
import sys
import cordgt
stream = cordgt.read_events(sys.argv[1])
stream.to_arrow()
cordgt.read_events(stream[:1].to_arrow())
libraries = {"polars",  # pyarrow itself imports pandas if it is installed
     "duckdb", "networkx", "torch_geometric", "tgb"}
print(sorted(libraries & {name.partition(".")[0] for name in sys.modules}))
"""


def test_no_library_is_imported_without_its_object(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,time\na,b,1\nb,c,2\n")
    command = [sys.executable, "-c", IMPORTS_NOTHING, str(tmp_path / "e.csv")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = EventStream.from_columns([1], [2], [3])
    for module, package, export in (
        ("pandas", "pandas", stream.to_pandas),
        ("polars", "polars", stream.to_polars),
        ("torch_geometric.data", "torch-geometric", stream.to_temporal_data),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(DataError, match=f"Install it: pip install {package}"):
            export()


# -------------------- slices


def test_slices_are_streams_of_their_own_events() -> None:
    stream = with_node_features(
        EventStream.from_columns(
            ["a", "b", "c", "a"], ["x", "x", "y", "y"], [1, 2, 2, 5], np.arange(4.0)[:, None], [0, 1, None, 1]
        )
    )
    part = stream[1:3]
    assert (len(part), part.n_nodes) == (2, 4)
    assert part.ids.names.to_pylist() == ["b", "x", "c", "y"]
    assert part.ids.decode(part.src).to_pylist() == ["b", "c"]
    assert part.edge_x is not None
    assert part.edge_x[:, 0].tolist() == [1, 2]
    assert part.node_x is not None
    assert stream.node_x is not None
    assert part.node_x.tolist() == stream.node_x[stream.ids.encode(["b", "x", "c", "y"])].tolist()
    assert part.notes[-1] == "only the events 1 to 2 of 4 (counted from 0)"
    for a, b in ((0, 4), (0, 2), (2, 4), (1, 2)):
        again = read_events(stream[a:b].to_arrow(), node_features=stream.node_table())
        assert facts(again) == facts(stream[a:b])
    assert stream[-1:].t.tolist() == [5]
    with pytest.raises(DataError, match="The slice 3:3 of a stream of 4 events holds no events"):
        stream[3:3]
    for wrong in (0, slice(0, 4, 2), "a"):
        with pytest.raises(TypeError, match="slices without a step"):
            stream[wrong]  # type: ignore[index]


def test_before_is_what_a_query_sees(tmp_path: Path) -> None:
    stream = EventStream.from_columns(["a", "b", "c"], ["b", "c", "d"], ["2024-01-01", "2024-01-02", "2024-01-02"])
    assert stream.before("2024-01-02").n_events == 1
    assert stream.before(pd.Timestamp("2024-01-02T00:00:01")).n_events == 3
    with pytest.raises(DataError, match=r"No event is before 2024-01-01; the stream begins at 2024-01-01T00:00:00Z"):
        stream.before("2024-01-01")
    with pytest.raises(DataError, match="the times of this stream are dates"):
        stream.before(5)
    with pytest.raises(DataError, match="NaT is not a time"):
        stream.before(pd.NaT)
    assert EventStream.from_columns([1, 1], [2, 2], [1, 2]).before(1.5).n_events == 1
    convert_to_store(stream, tmp_path / "s")
    part = read_events(tmp_path / "s").before("2024-01-02")
    assert (part.backing, part.n_events, part.n_nodes) == (None, 1, 2)


# -------------------- answers and metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rng = np.random.default_rng(1)
    rows = {
        "user": rng.integers(0, 9, 200),
        "item": rng.integers(0, 9, 200),
        "date": pd.date_range("2024", periods=200),
    }
    return cordgt.train(
        pd.DataFrame(rows), "counts", epochs=1, out=tmp_path_factory.mktemp("runs") / "r", device="cpu", report=False
    )


def test_metrics_as_frames(run: Run) -> None:
    frame = run.metrics.to_pandas()
    own = frame[(frame["split"] == "test") & (frame["setting"] == "transductive") & (frame["predictor"] == "counts")]
    assert own["ap"].item() == run.metrics["test"]["transductive"]["ap"]
    assert own["events"].item() == run.metrics["test"]["transductive"]["events"]
    assert set(frame["predictor"]) == {"counts", *run.metrics.baselines}
    several = RunMetrics.from_runs([run.metrics, run.metrics]).to_arrow()
    assert {"ap", "ap_std"} <= set(several.column_names)
    assert several["ap_std"][0].as_py() == 0
    polars = need("polars")
    assert isinstance(run.metrics.to_polars(), polars.DataFrame)


def test_scores_with_notes(run: Run) -> None:
    table = run.score_table([1, 77], 3, at="2024-02-01")
    assert table.column_names == ["src", "dst", "time", "score", "note"]
    assert table["score"].to_pylist() == run.score([1, 77], 3, at="2024-02-01").tolist()
    assert table["note"].to_pylist() == ["", "src: no history"]
    assert table["time"].to_pylist() == ["2024-02-01T00:00:00Z"] * 2
    assert table.to_pandas().shape == (2, 5)


def test_recommendations_as_frames(run: Run) -> None:
    table = run.recommend_table([1, 2], top=3, candidates=[1, 2, 3, 4])
    frame = table.to_pandas()
    assert frame["src"].tolist() == [1, 1, 1, 2, 2, 2]
    assert frame["rank"].tolist() == [1, 2, 3] * 2
    best = run.recommend(2, top=3, candidates=[1, 2, 3, 4])
    assert frame["node"].tolist()[3:] == [r.node for r in best]
    assert pd.DataFrame(best)["score"].tolist() == frame["score"].tolist()[3:]  # a list is a data frame too
    assert run.recommend_table("new", top=1)["src_note"].to_pylist() == ["no history"]


def test_embeddings_as_frames(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=30, events=200).stream
    tiny = {"hidden": 8, "heads": 2, "fanout": (2, 1), "epochs": 1}
    run = cordgt.train(stream, out=tmp_path / "r", device="cpu", report=False, **tiny)
    table = run.embed_table()
    assert table.num_rows == run.stream.n_nodes
    assert table["embedding"][0].as_py() == pytest.approx(run.embed()[0].tolist())


# -------------------- settings that nobody reads


def test_unknown_and_unused_settings_are_errors(run: Run, tmp_path: Path) -> None:
    stream = EventStream.from_columns([1, 2], [2, 3], [1, 2])
    for options, text in (
        ({"model": "tgn", "fanout": (32, 1)}, "tgn does not read fanout"),
        ({"epoch": 3}, r"epoch.*Did you mean 'epochs'"),
        ({"columns": {"source": "a"}}, "there is no column option 'source'"),
    ):
        with pytest.raises(SettingError, match=text):
            cordgt.train(stream, out=tmp_path / "no", **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="A stream takes no option 'src'"):
        cordgt.train(stream, src="a", out=tmp_path / "no")
    with pytest.raises(DataError, match="A stream takes no option 'time'"):
        run.with_events(stream, time="t")
    with pytest.raises(SettingError, match=r"evaluate: .*'visibilty'"):
        run.evaluate(visibilty="paper")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sources'"):
        read_events(FRAME, sources="a")  # type: ignore[call-arg]
    assert not (tmp_path / "no").exists()


def test_train_takes_every_option_of_read_events(tmp_path: Path) -> None:
    text = "src,dst,time\n" + "".join(f"u{k % 5},v{k % 3},{k}\n" for k in range(60)) + "u1,v1,never\n"
    (tmp_path / "e.csv").write_text(text)
    run = cordgt.train(
        tmp_path / "e.csv", "counts", name="mine", skip_bad_rows=True, epochs=1, out=tmp_path / "r", report=False
    )
    assert (run.stream.name, run.stream.n_events) == ("mine", 60)


def test_parquet_of_an_exported_table(tmp_path: Path) -> None:
    stream = EventStream.from_columns([1, 2], [2, 3], ["2024-01-01", "2024-01-02"], shared_ids=False)
    pq.write_table(stream.to_arrow(), tmp_path / "e.parquet")
    assert facts(read_events(tmp_path / "e.parquet")) == facts(stream)


# -------------------- the documentation


def test_the_page_on_frames_works(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of docs/frames.md, one after the other."""
    page = (Path(__file__).parents[2] / "docs" / "frames.md").read_text(encoding="utf-8")
    monkeypatch.setattr(Run, "load", classmethod(lambda cls, path: run))
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    names: dict[str, Any] = {}
    exec(code.replace("run.embed_table()", "run"), names)  # the run of these tests has no embeddings
    assert facts(names["again"]) == facts(names["stream"])


# -------------------- dictionaries


def test_a_dictionary_of_columns_is_a_table() -> None:
    columns = {"giver": ["ada", "bob"], "taker": np.array([7, 8]), "sent": [2, 1], "price": (0.5, 1.5)}
    options: dict[str, Any] = {"src": "giver", "dst": "taker", "time": "sent", "features": ["price"], "ids": "separate"}
    stream = cordgt.read_events(columns, **options)
    assert stream.fingerprint == cordgt.read_events(pd.DataFrame(columns), **options).fingerprint
    assert stream[:1].fingerprint != stream.fingerprint
    with pytest.raises(DataError, match=r"dictionary cannot be read as a table of columns"):
        cordgt.read_events({"src": [1, 2], "dst": [3], "time": [0, 1]})
