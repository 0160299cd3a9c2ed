"""A live service for tests and scripts: `cordgt serve` as a process of its own, on a free port."""

from __future__ import annotations

import atexit
import http.client
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .helpers import events, process, works, write_rows

START_SECONDS = 180  # on a loaded machine, which compiles loops first
LAST_TIME = 2000  # not before the last event of `train_run`
SCRIPT = "<script>document.title='caught'</script>"
NAMES = [SCRIPT, "<img src=x onerror=document.title='caught'>", "\u202eabc", "..", "a/b?c#d", "x" * 300, "ann", "joann"]


def require_service_packages() -> None:
    """Skip the test, saying so, if the packages of the service are not installed."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason="the live service needs its packages: pip install 'cordgt[serve]'")


def train_run(folder: Path) -> Path:
    """Train a small run whose node ids are markup, paths and long texts."""
    rows = [(NAMES[a % len(NAMES)], NAMES[b % len(NAMES)], t) for a, b, t in events()]
    data = write_rows(folder / "data.tsv", rows, header=("src", "dst", "time"), mark="\t")
    works("train", data, "--model", "counts", "--set", "epochs=1", "--no-report", "--out", folder / "run")
    return folder / "run"


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class LiveService:
    """A running service. As a context it is stopped at the end. Every thread should use a `Client` of its own."""

    def __init__(
        self,
        run: Path,
        data_dir: Path,
        *options: str,
        tokens: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "cordgt"),
        log: Path | None = None,
    ) -> None:
        """Start it and wait until it is ready. ``tokens`` by kind: read, write. RuntimeError if it does not start.

        ``program``: what Python runs. ``log``: file of its messages; by default beside the data folder.
        """
        self.tokens = dict(tokens or {})
        self.log = log or data_dir.with_name(f"{data_dir.name}.log")
        start = self.log.stat().st_size if self.log.exists() else 0
        extra = {f"CORDGT_{kind.upper()}_TOKEN": value for kind, value in self.tokens.items()}
        argv = ("serve", run, "--port", "0", "--data-dir", data_dir, "--device", "cpu", *options)
        with self.log.open("a") as stream:
            self.process: subprocess.Popen[str] = process(
                *argv, extra=extra, program=program, stdout=stream, stderr=stream
            )
        atexit.register(self.kill)  # also if a script ends with an error
        self.port = self._wait_for_port(start)
        self.url = f"http://127.0.0.1:{self.port}"

    def _wait_for_port(self, start: int) -> int:
        """Return the port of the line that says "ready"."""
        deadline, text = time.monotonic() + START_SECONDS, ""
        while time.monotonic() < deadline:
            is_over = self.process.poll() is not None
            text = self.log.read_bytes()[start:].decode()
            for line in text.splitlines():
                if '"message": "ready"' in line and line.endswith("}"):
                    return int(json.loads(line)["port"])
            if is_over:
                break
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the service did not start:\n{text}")

    def __enter__(self) -> LiveService:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        """End the process at once with SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self) -> int:
        """Ask the process to end; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self.process.returncode)

    def client(self, token: str | None = None) -> Client:
        """Return a new connection."""
        return Client(self.port, token)

    def ask(self, path: str, body: Any = None, *, token: str | None = None, **headers: str) -> Reply:
        """GET a path, or POST a JSON body to it, on a connection of its own."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= {"Authorization": f"Bearer {token}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, sent | headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Reply(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read().decode())

    def add_events(self, n: int, *, start: int = LAST_TIME) -> Reply:
        """Add events between the nodes of `train_run`."""
        rows = events(n, seed=start, start=start)
        body = [{"src": NAMES[a % len(NAMES)], "dst": NAMES[b % len(NAMES)], "time": t} for a, b, t in rows]
        return self.ask("/events", {"events": body}, token=self.tokens.get("write"))


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
