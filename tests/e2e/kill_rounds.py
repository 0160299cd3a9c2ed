"""Kill a live service under load, and check that nothing acknowledged is lost."""

from __future__ import annotations

import http.client
import random
import threading
import time
from pathlib import Path
from typing import Any

from .live_service import Client, LiveService


def kill_round(
    server: LiveService, sent: dict[str, Any], rng: random.Random, seconds: float, swap_to: list[Path] | None = None
) -> dict[str, Any]:
    """Send events and ask questions from several threads until the server is killed; return what was acknowledged.

    ``swap_to``: runs to swap the model to, one after the other, all the time.
    """
    acknowledged: dict[str, Any] = {"events": {}, "answers": []}
    is_over = threading.Event()

    def write(client: Client, name: str) -> None:
        try:
            while not is_over.is_set():
                key = f"{name}-{len(sent)}-{rng.random()}"
                node = 1000 + len(sent)
                sent[key] = [{"src": node, "dst": node % 11, "time": 30_000} for _ in range(rng.randint(1, 5))]
                status, receipt = client.post("/events", {"events": sent[key], "key": key})
                if status == 200:
                    acknowledged["events"][key] = receipt["cut"]
        except (OSError, ValueError, AssertionError, http.client.HTTPException):
            pass

    def ask(client: Client) -> None:
        try:
            while not is_over.is_set():
                acknowledged["answers"].append(client.recommend(str(rng.randint(0, 9)), "?n=5"))
        except (OSError, ValueError, AssertionError, http.client.HTTPException):
            pass

    def swap(client: Client) -> None:
        try:
            while not is_over.is_set():
                for run in swap_to or ():
                    client.post("/model", {"run": str(run)})
        except (OSError, ValueError, http.client.HTTPException):
            pass

    threads = [threading.Thread(target=write, args=(server.client(), f"w{k}")) for k in range(3)]
    threads += [threading.Thread(target=ask, args=(server.client(),))]
    threads += [threading.Thread(target=swap, args=(server.client(),))] if swap_to else []
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    server.kill()
    is_over.set()
    for thread in threads:
        thread.join()
    return acknowledged


def check_after_kill(server: LiveService, sent: dict[str, Any], keys: dict[str, Any], answers: list[Any]) -> None:
    """Every acknowledged request is there exactly once, a retry changes nothing, and every answer replays."""
    client = server.client()
    before = client.get("/health/ready")[1]["cut"]
    for key, cut in keys.items():
        status, receipt = client.post("/events", {"events": sent[key], "key": key})
        assert (status, receipt["repeated"], receipt["cut"]) == (200, True, cut)
    assert client.get("/health/ready")[1]["cut"] == before
    for answer in answers:
        status, replayed = client.post("/replay", {"answer_id": answer["answer_id"]})
        assert status == 200
        assert [row["node"] for row in replayed["partners"]] == [row["node"] for row in answer["partners"]]
        for old, new in zip(answer["partners"], replayed["partners"], strict=True):
            assert abs(old["score"] - new["score"]) < 1e-5
