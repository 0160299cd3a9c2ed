"""Node features joined by id: from text, Parquet, arrays and frames, in one id space and in two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt.errors import DataError
from cordgt.io.readers import read_events


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def small(tmp_path: Path) -> Path:
    return write(tmp_path / "e.csv", "src,dst,time\n1,2,0\n3,1,1\n2,4,2\n")


@pytest.mark.parametrize(
    "text",
    [
        "id,p,q\n3,5,6\n1,7,8\n9,1,1\n",
        "p,Node,q\n5,3,6\n7,1,8\n1,9,1\n",
        "3 5 6\n1 7 8\n9 1 1\n",
        "3\t5\t6\n1\t7\t8\n9\t1\t1\n",
    ],
)
def test_node_features_join_by_id(tmp_path: Path, text: str) -> None:
    stream = read_events(small(tmp_path), node_features=write(tmp_path / "n", text))
    assert stream.ids.names.to_pylist() == [1, 2, 3, 4]
    assert stream.node_x is not None
    assert stream.node_x.tolist() == [[7, 8], [0, 0], [5, 6], [0, 0]]
    notes = " ".join(stream.notes)
    assert "2 of 4 nodes have no row" in notes
    assert "1 rows of node features belong to no node" in notes


def test_node_features_from_other_sources(tmp_path: Path) -> None:
    events = small(tmp_path)
    np.save(tmp_path / "n.npy", np.arange(10).reshape(5, 2))
    expected = [[2, 3], [4, 5], [6, 7], [8, 9]]
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "x": expected}), tmp_path / "n.parquet")
    frame = pd.DataFrame(expected, columns=["a", "b"]).assign(id=[1, 2, 3, 4])
    for source in (tmp_path / "n.npy", np.arange(10).reshape(5, 2), tmp_path / "n.parquet", frame):
        node_x = read_events(events, node_features=source).node_x
        assert node_x is not None
        assert node_x.tolist() == expected


def test_node_features_with_separate_id_spaces(tmp_path: Path) -> None:
    events = small(tmp_path)
    sides = write(tmp_path / "s.csv", "id,side,x\n1,src,10\n1,dst,20\n2,dst,30\n4,src,99\n")
    stream = read_events(events, ids="separate", node_features=sides)
    assert stream.node_x is not None
    assert stream.ids.names.to_pylist() == [1, 2, 3, 1, 2, 4]
    assert stream.node_x[:, 0].tolist() == [10, 30, 0, 20, 0, 0]
    with pytest.raises(DataError, match=r"s2.csv, line 3: the id 1 .*column 'side'"):
        read_events(events, ids="separate", node_features=write(tmp_path / "s2.csv", "id,x\n3,1\n1,2\n"))
    clear = read_events(events, ids="separate", node_features=write(tmp_path / "s3.csv", "id,x\n3,1\n4,2\n"))
    assert clear.node_x is not None
    assert clear.node_x[:, 0].tolist() == [0, 0, 1, 0, 0, 2]
    with pytest.raises(DataError, match="line 2: side is 'left'"):
        read_events(events, ids="separate", node_features=write(tmp_path / "s4.csv", "id,side,x\n3,left,1\n"))
