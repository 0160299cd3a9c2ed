"""Seeds for mutation: small files as users have them, typed tables, and run folders."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.events.stream import EventStream
from cordgt.training.model_factory import build_model
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import make_settings

TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 2), "td_dim": 8, "sd_dim": 8, "epochs": 1}

_ML = ",u,i,ts,label,idx\n0,1,4,0.0,0.0,1\n1,2,4,36.0,0.0,2\n2,1,5,77.0,1.0,3\n3,3,4,77.0,0.0,4\n4,1,4,113.0,0.0,5\n"
_JODIE = (
    "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    "0,0,0.0,0,-0.17,0.5\n1,1,36.0,0,0.25,1.5\n1,0,77.0,1,0.0,-2\n2,1,131.0,0,1e-3,4\n"
)
EVENTS: dict[str, bytes] = {
    name: text.encode()
    for name, text in {
        "csv": "src,dst,time\n7,8,1\n8,9,2\n7,9,2\n9,7,5\n",
        "no header": "7,8,1\n8,9,2.5\n7,9,3\n9,7,5\n",
        "names": "source,target,timestamp,label\nalice,bob,10,0\nbob,eve,20,1\nzoë,名前,20,0\n007,alice,30,\n",
        "dates": "sender,receiver,date\na,b,2024-03-01\nb,c,2024-03-01T12:30:00Z\na,c,2024-03-02 08:00:00+02:00\n",
        "dates of one kind": "from;to;created_at\na;b;2024-03-01 10:00:00\nb;c;2024-03-01 12:30:00.123456\n",
        "quotes": '"src","dst","time"\n"a, b","c ""d""",1\n"line\nbreak","#e",2\n"#x",y,3\n',
        "tsv": "user\titem\tts\tfeature_0\tfeature_1\nu1\ti1\t1\t0.5\t1\nu2\ti1\t2\t-1e3\t0\nu1\ti2\t2\t3\t4\n",
        "edge list": "% sym\n# a comment\n1 2 10\n2 3 20\n3  1\t20\n1 2 35\n",
        "edge list of names": "alice bob 1400000010 1\nbob eve 1400000020 0\neve alice 1400000020 1\n",
        "konect": "% sym weighted\n" + "".join(f"{k % 7} {k % 5} {k % 3} {1400000000 + k // 2}\n" for k in range(12)),
        "time first": "".join(f"{20 * k}\t{k % 7 + 1}\t{k % 5 + 1}\n" for k in range(14)),
        "double colons": "1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978301968\n",
        "decimal commas": "src;dst;time;label\na;b;1,5;0\nb;c;2;1\nc;a;10,25;0,5\n",
        "day first": "src,dst,date\na,b,03/04/2024\nb,c,25/04/2024\nc,a,26/04/2024\n",
        "bars and crlf": "u|v|t\r\n1|2|3\r\n2|3|4\r\n",
        "spaces after commas": "src, dst, time, label\na, b, 1, 0\nb, c, 2, 1\n",
        "mark and big numbers": "\ufefffrom_id,to_id,epoch\n9223372036854775807,5,1e9\n18446744073709551616,0,1e12\n",
        "spaces before quotes": 'src, dst, time\n"a", "b, c", 1\n"b, c", d, 2\nd, "a", "3"\n',
        "blank lines": "\n\nhead,tail,t\n\na,b,1\n  \n\nb,a,2\n\n",
        "ml": _ML,
        "jodie": _JODIE,
        "wide": "src,dst,t," + ",".join(f"feature_{k}" for k in range(40)) + "\n" + ("1,2,3" + ",0" * 40 + "\n") * 3,
    }.items()
}  # fmt: skip
PAIRS: dict[str, bytes] = {
    "pairs": b"src,dst\n7,8\n8,9\n",
    "no header": b"7 8\n8 9\n",
    "with times": b"src,dst,time\na,b,1\nb,c,2\n",
    "dates": b"from,to,date\na,b,2024-01-01\nb,c,2024-01-02T03:04:05Z\n",
}
IDS: dict[str, bytes] = {
    "plain": b"7\n8\n9\n",
    "header": b"id\nalice\nbob\n",
    "column": b"name,node,age\na b,1,30\nc,2,40\n",
    "quotes": b'"a, b"\n"c"\nd e\n',
}
NODE_FEATURES: dict[str, bytes] = {
    "header": b"id,x,y\n7,0.5,1\n8,1,2\n9,3,4\n",
    "no header": b"7 0.5\n8 1\n9 2\n",
    "sides": b"id,side,x\n7,src,1\n8,dst,2\n9,src,3\n9,dst,4\n",
    "names": b"node;x\nalice;1\nbob;2\n",
}


def real_heads(folder: str | os.PathLike[str] | None, n_bytes: int = 3000) -> dict[str, bytes]:
    """Return the first few KB of every ``ml_NAME.csv[.gz]`` under a folder; empty if there is no folder."""
    found = {}
    for path in sorted(Path(folder).glob("*/ml_*.csv*")) if folder else []:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            found[path.name] = file.read(n_bytes)
    return found


def npy(rows: np.ndarray[Any, Any]) -> bytes:
    held = io.BytesIO()
    np.save(held, rows)
    return held.getvalue()


def parquet(table: Any, **options: Any) -> bytes:
    held = io.BytesIO()
    pq.write_table(table, held, **options)
    return held.getvalue()


def parquet_events() -> dict[str, bytes]:
    """Return Parquet files of events: integers, text, dates, lists of features."""
    n = 7
    numbers = {"src": list(range(n)), "dst": [3] * n, "time": [float(k) for k in range(n)], "label": [0, 1] * 3 + [0]}
    when = pa.array([10**15 + k for k in range(n)], pa.timestamp("us", "UTC"))
    features = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * n, dtype=np.float32)), 2)
    words = {"user_id": list("abcabca"), "item_id": list("xyzxyzx"), "time": when, "features": features}
    return {
        "numbers": parquet(pa.table(numbers)),
        "words": parquet(pa.table(words), compression="none"),
        "plain": parquet(pa.table(numbers), compression="none", use_dictionary=False),
    }


def streams() -> list[EventStream]:
    """Return a minimal stream, and one with everything that a stream can have."""
    rng = np.random.default_rng(5)
    n = 40
    src, dst = rng.integers(0, 9, (2, n))
    t = np.sort(rng.integers(0, 30, n))
    bare = EventStream.from_columns(src, dst, t, name="bare")
    full = EventStream.from_columns(
        [f"user {k}" for k in src], [f"ïtem {k}" for k in dst], pa.array(t * 10**9, pa.timestamp("us", "UTC")),
        rng.normal(size=(n, 2)), rng.integers(0, 2, n), shared_ids=False, name="full",
        notes=("two id spaces", 'a "note"'),
    )  # fmt: skip
    return [bare, full.with_node_features(rng.normal(size=(full.n_nodes, 3)))]


def run_folders(into: Path) -> list[Path]:
    """Write a finished run of each stream, with untrained weights, and a checkpoint of an unfinished run."""
    made = []
    for stream in streams():
        settings = make_settings("cordgt", TINY, seed=3)
        folder = RunFolder(into / stream.name)
        folder.create(settings, stream, columns={"src": "src", "features": "rest"})
        weights = build_model(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim).state_dict()
        folder.write_tensors("model.safetensors", weights, {"epoch": 1})
        folder.write_tensors("state.safetensors", weights, {"epoch": 1, "best": 0.5})
        about = {"model": "cordgt", "data": stream.name, "seed": 3, "epochs": 1, "best_epoch": 1}
        about |= {"seconds_per_epoch": 0.5, "protocol": vars(settings.protocol)}
        metrics = {key: {"ap": 0.75, "auc": 0.5, "events": 3} for key in ("transductive", "inductive")}
        folder.write_metrics({**about, "validation": metrics, "test": metrics})
        made.append(folder.path)
    return made
