"""Start `cordgt serve` as a process of its own, ask it over HTTP, and kill it."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cordgt

START_SECONDS = 120


class LiveServer:
    """A running service. Every thread should use a `Client` of its own."""

    def __init__(self, run: Path, data_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        source = str(Path(cordgt.__file__).parent.parent)
        search = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "cordgt", "serve", str(run), "--port", "0", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*command, "--device", "cpu", *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": search, **(env or {})},
        )
        self.lines: list[str] = []
        self._is_up = threading.Event()
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._is_up.wait(START_SECONDS) or not self.port:
            self.kill()
            raise RuntimeError("the service did not start:\n" + "".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if not self.port and line.startswith("{"):
                record = json.loads(line)
                if record["message"] == "ready":
                    self.port = record["port"]
                    self._is_up.set()
        self._is_up.set()

    def client(self, token: str | None = None) -> Client:
        return Client(self.port, token)

    def kill(self) -> None:
        """End the process at once, as a power failure of the process would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def stop(self) -> int:
        """Ask the process to end; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join()
        return code


class Client:
    """One connection, kept open."""

    def __init__(self, port: int, token: str | None = None, timeout: float = 60) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and parsed body."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, self._headers)
        response = self._connection.getresponse()
        text = response.read()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text.decode()

    def get(self, path: str) -> tuple[int, Any]:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        return self.request("POST", path, body)

    def recommend(self, source: str, query: str = "") -> dict[str, Any]:
        status, answer = self.get(f"/recommend/{quote(source, safe='')}{query}")
        assert status == 200, answer
        return dict(answer)


def kill_round(
    server: LiveServer, sent: dict[str, Any], rng: random.Random, seconds: float, swap_to: list[Path] | None = None
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
                sent[key] = [{"src": node, "dst": node % 11, "time": 10**9} for _ in range(rng.randint(1, 5))]
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


def check_after_kill(server: LiveServer, sent: dict[str, Any], keys: dict[str, Any], answers: list[Any]) -> None:
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
