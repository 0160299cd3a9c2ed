"""Tables without a header: the reader finds the time in the layouts that people publish, or asks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.events.stream import EventStream
from cordgt.io.convert import convert_to_store
from cordgt.io.readers import read_events

ASKS = "it is not clear which column is the time"
Row = tuple[int, int, float, int]  # source, destination, weight, time


def rows_of(
    n: int, *, seed: int = 0, start: int = 1_396_640_000, step: int = 977, weights: str = "rating"
) -> list[Row]:
    """Return rows with tied times, repeated pairs and a self-loop."""
    draw = random.Random(seed)
    choices = {"rating": lambda: draw.randint(1, 5), "sign": lambda: draw.choice([-1, 1]), "one": lambda: 1}
    choices["amount"] = lambda: draw.randint(1, 10**6) / 100
    t, rows = start, [(3, 3, 1.0, start)]
    for _ in range(n - 1):
        t += step * draw.randint(0, 2)
        rows.append((draw.randint(1, 40), draw.randint(1, 40), choices[weights](), t))
    return rows


LAYOUTS: dict[str, Callable[[list[Row]], str]] = {
    "KONECT": lambda rows: "% sym weighted\n% 60 40 40\n" + "".join(f"{a} {b} {w} {t}\n" for a, b, w, t in rows),
    "KONECT, tabs": lambda rows: "% bip\n" + "".join(f"{a}\t{b}\t{w}\t{t}\n" for a, b, w, t in rows),
    "Network Repository": lambda rows: "".join(f"{a},{b},{w},{t}\n" for a, b, w, t in rows),
    "Network Repository, time third": lambda rows: "".join(f"{a},{b},{t},{w}\n" for a, b, w, t in rows),
    "SNAP signed": lambda rows: "".join(f"{a},{b},{w:+g},{t}.25\n" for a, b, w, t in rows),
    "MovieLens u.data": lambda rows: "".join(f"{a}\t{b}\t{w}\t{t}\n" for a, b, w, t in rows),
    "MovieLens ratings.csv": lambda rows: (
        "userId,movieId,rating,timestamp\n" + "".join(f"{a},{b},{w},{t}\n" for a, b, w, t in rows)
    ),
    "SocioPatterns": lambda rows: "".join(f"{t}\t{a}\t{b}\n" for a, b, _, t in rows),
    "SocioPatterns, classes": lambda rows: "".join(f"{t} {a} {b} 3A PC\n" for a, b, _, t in rows),
    "three columns": lambda rows: "".join(f"{a} {b} {t}\n" for a, b, _, t in rows),
}


def as_events(stream: EventStream) -> list[tuple[str, str, int]]:
    ends = (stream.ids.decode(k).to_pylist() for k in (stream.src, stream.dst))
    return [(str(a), str(b), int(t)) for a, b, t in zip(*ends, stream.t, strict=True)]


def expected_events(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(str(a), str(b), t) for a, b, _, t in sorted(rows, key=lambda row: row[3])]


@pytest.mark.parametrize("weights", ["rating", "sign", "one", "amount"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts(tmp_path: Path, layout: str, weights: str) -> None:
    rows = rows_of(60, weights=weights)
    path = tmp_path / "list.txt"
    path.write_text(LAYOUTS[layout](rows))
    stream = read_events(path, ids="shared")
    assert as_events(stream) == expected_events(rows)
    if not layout.endswith("ratings.csv"):
        reasons = [note for note in stream.notes if "is the time because" in note]
        assert len(reasons) == 1
        assert "seconds since 1970, 2014-04-04 to 2014-04-05" in reasons[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_has_the_same_events(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(LAYOUTS[layout](rows_of(60)))
    stream = read_events(path)
    store = convert_to_store(path, tmp_path / "s.store").stream()
    assert as_events(store) == as_events(stream)
    assert [k for k in store.notes if "because" in k] == [k for k in stream.notes if "because" in k]


@given(
    layout=st.sampled_from(list(LAYOUTS)),
    n=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    start=st.sampled_from([0, 1, 20, 5000, 10**6, 1_396_640_000, 1_396_640_000_000]),
    step=st.sampled_from([0, 1, 20, 977]),
    weights=st.sampled_from(["rating", "sign", "one", "amount"]),
    shuffle=st.booleans(),
)
def test_the_time_is_found_or_asked_for(
    tmp_path_factory: pytest.TempPathFactory, layout: str, n: int, seed: int, start: int, step: int, weights: str,
    shuffle: bool,
) -> None:  # fmt: skip
    """Relative times, few rows, one time for all: what is read is what was written, or the reader asks."""
    rows = rows_of(n, seed=seed, start=start, step=step, weights=weights)
    if shuffle:
        random.Random(seed).shuffle(rows)
    path = tmp_path_factory.mktemp("layout") / "list.txt"
    path.write_text(LAYOUTS[layout](rows))
    try:
        stream = read_events(path, ids="shared")
    except DataError as error:
        assert ASKS in str(error)
        assert start < 10**9 or n < 10 or layout.startswith("Socio"), "the range of the values was enough"
    else:
        if layout.startswith("Socio") and (n < 10 or shuffle or step == 0):
            return  # nothing speaks against the documented layout `src dst time`, which a note states
        assert as_events(stream) == expected_events(rows)


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("".join(f"{k % 7} {k % 5} {k % 3} {k // 2}\n" for k in range(40)), (0, 1, 3)),
        ("".join(f"{k % 7} {k % 5} {k // 2} {k % 3}\n" for k in range(40)), (0, 1, 2)),
        ("".join(f"{k * 20} {k % 7 + 1} {k % 5 + 2}\n" for k in range(300)), (1, 2, 0)),
        ("".join(f"{k // 10} {k * 7 % 30} {k * 7919 % 6001}\n" for k in range(300)), (0, 1, 2)),
        ("2024-03-01 a b\n2024-03-02 b c\n", (1, 2, 0)),
        ("a b 2024-03-01\nb c 2024-03-02\n", (0, 1, 2)),
        ("a,b,0.5,2024-03-01 12:00\nb,c,7,2024-03-01 13:00\n", (0, 1, 3)),
        ("5 a b x\n7 b c y\n", (1, 2, 0)),
        ("".join(f"3012345{k:03} 3012346{k:03} {k}\n" for k in range(20)), (0, 1, 2)),  # telephone numbers
        ("a b 20240131 4\nb c 20240201 5\na c 20240228 9\n", (0, 1, 2)),
    ],
)
def test_values_decide(tmp_path: Path, text: str, roles: tuple[int, int, int]) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    src, dst, time = roles
    note = f"sources from column {src}, destinations from column {dst}, times from column {time}"
    assert any(note in k for k in read_events(path).notes)


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3 4\n",
        "".join(f"{k % 7} {k % 5} {k * 7919 % 1009} {k * 31 % 977}\n" for k in range(40)),
        "".join(f"{k % 7} {k % 5} {k} {k * 2}\n" for k in range(40)),
        "".join(f"{k % 7} {k % 5} {1_400_000_000 + k} {1_400_000_060 + k}\n" for k in range(40)),
    ],
)
def test_the_reader_asks(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=ASKS) as caught:
        read_events(path)
    assert "Name its position, counted from 0, for example --time 3" in str(caught.value)
    with pytest.raises(DataError, match=ASKS):
        convert_to_store(path, tmp_path / "s.store")
    assert read_events(path, time=3).n_events == text.count("\n")


WEIGHTS = {
    "weight": lambda k: k * 7919 % 99 + 1,
    "sign": lambda k: (-1, 1)[k * 7919 % 13 % 2],
    "rating": lambda k: (k * 31 % 11) / 2,
}


@pytest.mark.parametrize("ending", ["", " x"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_are_not_times(tmp_path: Path, weights: str, ending: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{k * 7 % 60} {k * 11 % 60} {WEIGHTS[weights](k)}{ending}\n" for k in range(300)))
    with pytest.raises(DataError, match=ASKS) as caught:
        read_events(path)
    assert "not sorted, which may be weights). Name its position, counted from 0, for example --time 2" in str(
        caught.value
    )
    with pytest.raises(DataError, match=ASKS):
        convert_to_store(path, tmp_path / "s.store")
    assert read_events(path, time=2).n_events == 300


@pytest.mark.parametrize(
    "times",
    [
        [k // 50 for k in range(300)],
        [5 - k // 50 for k in range(300)],  # the last event first
        [k * 7919 % 6001 for k in range(300)],  # not sorted, few repeated
        [1_400_000_000 + k * 31 % 7 * 86400 for k in range(300)],
        [f"2024-03-0{k * 31 % 7 + 1}" for k in range(300)],
        [k * 31 % 3 for k in range(19)],  # too few rows to say
    ],
)
def test_the_only_column_left_is_the_time(tmp_path: Path, times: list[int | str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{k * 7 % 60} {k * 11 % 60} {t}\n" for k, t in enumerate(times)))
    assert any("times from column 2" in note for note in read_events(path).notes)


def test_time_by_position_moves_the_ends(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("5 1 2 9\n6 2 3 8\n")
    assert as_events(read_events(path, time=0)) == [("1", "2", 5), ("2", "3", 6)]
    assert as_events(read_events(path, time=1)) == [("5", "2", 1), ("6", "3", 2)]
    assert as_events(read_events(path, src=3, dst=0, time=1)) == [("9", "5", 1), ("8", "6", 2)]
    with pytest.raises(DataError, match="both the source and the destination"):
        read_events(path, src=1, time=2)
