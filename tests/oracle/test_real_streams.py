"""Trees and distances at a few times of real streams: long rows, thousands of ties and self-loops."""

from __future__ import annotations

import csv
from bisect import bisect_left
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.distance import DistanceOptions, spatial_distance, temporal_distance

from . import slow
from .helpers import build, nodes_of, positions_of
from .strategies import Stream

N_QUERIES = 8


@pytest.fixture(scope="module", params=["uci", "enron"])
def stream(request: pytest.FixtureRequest, data_folder: Path) -> Stream:
    """Source, destination and time of a published file, with its own ids."""
    path = data_folder / request.param / f"ml_{request.param}.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with path.open() as lines:
        rows = sorted(
            ((float(row["ts"]), int(row["u"]), int(row["i"])) for row in csv.DictReader(lines)), key=lambda row: row[0]
        )
    t, src, dst = (list(column) for column in zip(*rows, strict=True))
    return Stream(src, dst, t, max(*src, *dst) + 1, [p % 11 != 0 for p in range(len(src))])


def test_trees_and_distances(place: Any, stream: Stream) -> None:
    history, elapsed, index = stream.history, stream.elapsed, place.index(build(stream))
    at = Random(5).sample(range(stream.n_events // 2, stream.n_events), N_QUERIES)
    cut = [bisect_left(elapsed, elapsed[p]) for p in at]
    src, dst, t = ([column[p] for p in at] for column in (stream.src, stream.dst, elapsed))
    shape = TreeShape((6, 2))
    trees = [sample_trees(index, shape, place.ints(root), place.ints(cut), seed=1, epoch=2) for root in (src, dst)]
    spatial = spatial_distance(trees[0].node, trees[1], shape, sd_unseen=9)
    weights = {"alpha": 0.1, "beta": 1.0, "td_unseen": 3.0}
    query = trees[0].node, place.ints(dst), place.floats(t), place.ints(cut)
    temporal = temporal_distance(index, *query, DistanceOptions(**weights, sd_unseen=9))
    for i in range(N_QUERIES):
        one, two = (slow.tree(history, shape.fanout, root[i], cut[i], seed=1, epoch=2) for root in (src, dst))
        assert trees[0].node[i].tolist() == nodes_of(one) and trees[0].pos[i].tolist() == positions_of(one)
        assert trees[1].node[i].tolist() == nodes_of(two) and trees[1].pos[i].tolist() == positions_of(two)
        assert spatial[i].tolist() == [slow.spatial_distance(node, two, 9) for node in nodes_of(one)]
        far = {w: slow.temporal_distance(history, w, dst[i], t[i], cut[i], **weights) for w in set(nodes_of(one))}
        assert temporal[i].tolist() == pytest.approx([far[w] for w in nodes_of(one)], rel=1e-12, abs=1e-12)
