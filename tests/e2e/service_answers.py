"""Compare the answers of a live service with those of the commands on a file of the first ``cut`` events."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

from cordgt.inference.run import Run

from .helpers import call, write_rows
from .live_service import LiveService

TOLERANCE = 1e-5
HEADER = ("src", "dst", "time")
Row = tuple[int, int, int]


def check_answers(
    run: Path, data_dir: Path, rows: list[Row], n_base: int, n_questions: int, n_commands: int
) -> list[dict[str, Any]]:
    """Ask a service while events arrive, and compare its answers. Return them.

    ``run`` was trained on the first ``n_base`` of the rows.
    """
    n_nodes = 1 + max(max(row[:2]) for row in rows)
    with LiveService(run, data_dir) as service:
        answers = ask_during_ingest(service, rows[n_base:], n_questions, n_nodes)
        service.kill()
    assert len(answers) >= n_questions, f"only {len(answers)} answers"
    trained = Run.load(run, "cpu")
    for k, answer in enumerate(answers):
        later = write_rows(data_dir / "later.csv", rows[n_base : answer["cut"]], header=HEADER)
        compare(answer, trained if answer["cut"] == n_base else trained.with_events(later))
        if k % max(1, len(answers) // n_commands) == 0 and answer["cut"] > n_base:
            compare_with_commands(answer, run, later)
    return answers


def check_replays(run: Path, data_dir: Path, answers: list[dict[str, Any]]) -> None:
    """Start the service again, and replay answers."""
    with LiveService(run, data_dir) as service:
        client = service.client()
        for answer in answers:
            status, again = client.post("/replay", {"answer_id": answer["answer_id"]})
            assert status == 200 and again["cut"] == answer["cut"], again
            assert_equal(again["partners"], answer["partners"])


def ask_during_ingest(service: LiveService, later: list[Row], n_questions: int, n_nodes: int) -> list[dict[str, Any]]:
    """Send events in small batches, and ask from three threads until all have arrived and enough was asked."""
    answers: list[dict[str, Any]] = []
    is_over = threading.Event()

    def ask(seed: int) -> None:
        client, draw = service.client(), random.Random(seed)
        while not is_over.is_set() or len(answers) < n_questions:
            source = draw.randrange(n_nodes + 5)  # some are not known yet
            query = draw.choice(("?n=5", "?n=10&new_only=true", "?n=3&exclude=1&exclude=2"))
            answers.append(client.recommend(str(source), query) | {"query": query})

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    client, start = service.client(), 0
    while start < len(later):
        if len(answers) * len(later) < start * n_questions:  # spread the questions over all events
            continue
        batch = later[start : start + 5]
        body = [dict(zip(HEADER, row, strict=True)) for row in batch]
        status, receipt = client.post("/events", {"events": body})
        assert status == 200, receipt
        start += len(batch)
    is_over.set()
    for thread in threads:
        thread.join()
    return answers


def filters_of(query: str) -> tuple[int, dict[str, Any]]:
    """Return ``n`` and the filters of a query."""
    n = int(query.partition("n=")[2].partition("&")[0])
    return n, {"new_only": "new_only" in query} | ({"exclude": [1, 2]} if "exclude" in query else {})


def compare(answer: dict[str, Any], run: Run) -> None:
    n, filters = filters_of(answer["query"])
    assert run.stream.n_events == answer["cut"]
    found = run.recommend(answer["source"], top=n, **filters)  # type: ignore[call-overload]
    assert_equal(answer["partners"], [vars(one) for one in found])


def compare_with_commands(answer: dict[str, Any], run: Path, later: Path) -> None:
    n, filters = filters_of(answer["query"])
    options: list[Any] = ["--new-only"] if filters["new_only"] else []
    options += [word for one in filters.get("exclude", ()) for word in ("--exclude-id", one)]
    shared = ("--events", later, "--json")
    result = call("recommend", run, "--source", answer["source"], "--top", n, *options, *shared)
    assert result.code == 0, result.err
    assert_equal(answer["partners"], result.json)
    pairs = [(answer["source"], row["node"]) for row in answer["partners"]]
    if pairs:
        file = write_rows(later.with_name("pairs.csv"), pairs, header=HEADER[:2])
        result = call("predict", run, "--pairs", file, *shared)
        assert result.code == 0, result.err
        for row, expected in zip(answer["partners"], result.json, strict=True):
            assert abs(row["score"] - expected["score"]) <= TOLERANCE


def assert_equal(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    """Same nodes in the same order, and scores within the tolerance."""
    assert [row["node"] for row in one] == [row["node"] for row in two], (one, two)
    assert all(abs(a["score"] - b["score"]) <= TOLERANCE for a, b in zip(one, two, strict=True)), (one, two)
