"""describe: compared with numbers counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cordgt.events.describe import describe, describe_for_display
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.io.datasets.registry import KNOWN_DATASETS
from cordgt.io.readers import read_events


def test_seven_events_by_hand() -> None:
    stream = EventStream.from_columns(
        ["a", "b", "c", "c", "a", "d", "a"],
        ["b", "a", "c", "a", "b", "a", "c"],
        [10, 12, 12, 12, 15, 20, 20],
        np.ones((7, 3)),
        [0, 1, 0, 0, 0, 1, 1],
        name="seven",
        notes=["a note"],
    )
    found = describe(stream)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "name": "seven",
        "events": 7,
        "nodes": 4,
        "sources": 4,
        "destinations": 3,
        "bipartite": False,
        "id_spaces": 1,
        "times": "number",
        "first_time": 10,
        "last_time": 20,
        "span": 10.0,
        "span_unit": "as in the file",
        "intensity": 2 * 7 / (4 * 10),
        "repeated_pair_share": 3 / 7,  # ab repeats twice, ca once
        "tied_time_share": 5 / 7,
        "largest_tie": 3,
        "self_loops": 1,
        "edge_features": 3,
        "node_features": 0,
        "labels_positive": 3,
        "notes": ["a note"],
    }


def test_two_id_spaces_and_dates() -> None:
    stream = EventStream.from_columns([1, 1], [1, 2], ["2024-01-01", "2024-01-02"], shared_ids=False)
    found = describe(stream)
    assert (found["bipartite"], found["id_spaces"], found["nodes"], found["self_loops"]) == (True, 2, 3, 0)
    assert (found["first_time"], found["last_time"]) == ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
    assert (found["span"], found["span_unit"]) == (86400.0, "seconds")
    assert found["labels_positive"] is None


def test_single_event() -> None:
    found = describe(EventStream.from_columns([1], [2], [5.5], time=TimeAxis()))
    assert (found["span"], found["intensity"], found["repeated_pair_share"]) == (0.0, None, 0.0)
    assert (found["tied_time_share"], found["largest_tie"]) == (0.0, 1)


@pytest.mark.parametrize("name", ["uci", "enron", "wikipedia"])
def test_intensity_matches_the_paper(data_folder: Path, name: str) -> None:
    path = data_folder / name / f"ml_{name}.csv"
    if not path.is_file():
        pytest.skip(f"{data_folder} has no {name}")
    found = describe(read_events(path))
    assert found["intensity"] == pytest.approx(KNOWN_DATASETS[name].intensity, rel=0.01)
    assert found["bipartite"] == KNOWN_DATASETS[name].is_bipartite
    if name == "enron":
        assert found["self_loops"] == 16410


def test_times_since_1970_are_shown_with_dates() -> None:
    stream = EventStream.from_columns(["a", "b"], ["b", "c"], [1396640000, 1396726400])
    facts, shown = describe(stream), describe_for_display(stream)
    assert (facts["first_time"], facts["span_unit"]) == (1396640000, "seconds")
    assert shown["first_time"] == "1396640000 (2014-04-04 19:33 UTC)"
    assert shown["last_time"] == "1396726400 (2014-04-05 19:33 UTC)"
    assert shown["events"] == facts["events"]
