"""Kill a live service under load, and check that nothing acknowledged is lost."""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .live_service import Client, LiveService

CRASHING_SERVICE = Path(__file__).with_name("crashing_service.py")
FAR_TOO_LONG = 60  # seconds until a service reaches the point where it dies


@dataclass
class ClientLog:
    """What the clients of a service know."""

    sent: dict[str, Any] = field(default_factory=dict)  # events by key
    acknowledged: dict[str, int] = field(default_factory=dict)  # cut by key
    answers: list[Any] = field(default_factory=list)
    n_retried: int = 0  # requests that were sent before a kill, and got no answer
    n_committed_without_answer: int = 0  # of these, the ones that the service had committed

    @property
    def n_events(self) -> int:
        """Events of the acknowledged requests."""
        return sum(len(self.sent[key]) for key in self.acknowledged)


def crash_program(point: str, marker: Path, number: int) -> Sequence[str]:
    """Return the program of a `LiveService` that kills itself the ``number``-th time it reaches a point."""
    return (str(CRASHING_SERVICE), point, str(marker), str(number))


def kill_round(
    server: LiveService,
    log: ClientLog,
    rng: random.Random,
    seconds: float | None = None,
    swap_to: Sequence[Path] = (),
    max_answers: int = 50,
) -> None:
    """Send events and ask questions from several threads until the service is dead.

    It is killed after some seconds; None: it kills itself. ``swap_to``: runs to swap the model to, one after the other,
    all the time.
    """
    is_over = threading.Event()
    answers: list[Any] = []
    ended = (OSError, ValueError, AssertionError, http.client.HTTPException)

    def write(client: Client, name: str) -> None:
        while not is_over.is_set():
            key = f"{name}-{len(log.sent)}-{rng.random()}"
            node = 1000 + len(log.sent)
            log.sent[key] = [{"src": node, "dst": node % 11, "time": 30_000} for _ in range(rng.randint(1, 5))]
            status, receipt = client.post("/events", {"events": log.sent[key], "key": key})
            if status == 200:
                log.acknowledged[key] = receipt["cut"]

    def ask(client: Client, name: str) -> None:
        while not is_over.is_set():
            answers.append(client.recommend(str(rng.randint(0, 9)), "?n=5"))

    def swap(client: Client, name: str) -> None:
        while not is_over.is_set():
            for run in swap_to:
                client.post("/model", {"run": str(run)})

    def work(function: Any, client: Client, name: str) -> None:
        with suppress(*ended):  # the service is dead
            function(client, name)

    answers.append(server.client().recommend("0", "?n=5"))  # the service may die before it answers a thread
    functions = [write, write, write, ask, *([swap] if swap_to else [])]
    threads = [
        threading.Thread(target=work, args=(function, server.client(), f"w{k}")) for k, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    if seconds is None:
        try:
            server.process.wait(FAR_TOO_LONG)
        except subprocess.TimeoutExpired:
            print("the service did not reach the point where it dies", file=sys.stderr)
    else:
        time.sleep(seconds)
    server.kill()
    is_over.set()
    for thread in threads:
        thread.join()
    log.answers += rng.sample(answers, min(max_answers, len(answers)))


def check_after_kill(
    server: LiveService, log: ClientLog, n_base: int, rng: random.Random, n_checked: int | None = None
) -> None:
    """Every acknowledged request is there exactly once, a retry changes nothing, and earlier answers replay.

    Clients send what got no answer again. ``n_checked``: acknowledged requests, and answers, to check; None: all.
    """
    client = server.client()
    before = client.get("/health/ready")[1]["cut"]
    acknowledged = list(log.acknowledged.items())
    for key, cut in acknowledged if n_checked is None else rng.sample(acknowledged, min(n_checked, len(acknowledged))):
        status, receipt = client.post("/events", {"events": log.sent[key], "key": key})
        assert (status, receipt["repeated"], receipt["cut"]) == (200, True, cut)
    assert client.get("/health/ready")[1]["cut"] == before
    for key in [key for key in log.sent if key not in log.acknowledged]:
        status, receipt = client.post("/events", {"events": log.sent[key], "key": key})
        assert status == 200, receipt
        log.acknowledged[key] = receipt["cut"]
        log.n_retried += 1
        log.n_committed_without_answer += receipt["repeated"]
    assert client.get("/health/ready")[1]["cut"] == n_base + log.n_events  # each event exactly once
    for answer in log.answers if n_checked is None else rng.sample(log.answers, min(n_checked, len(log.answers))):
        status, replayed = client.post("/replay", {"answer_id": answer["answer_id"]})
        assert status == 200
        assert [row["node"] for row in replayed["partners"]] == [row["node"] for row in answer["partners"]]
        for old, new in zip(answer["partners"], replayed["partners"], strict=True):
            assert abs(old["score"] - new["score"]) < 1e-5
