"""A live service for tests: `cordgt serve` as a process of its own, on a free port."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .helpers import events, process, works, write_rows

START_SECONDS = 120  # on a loaded machine, which compiles loops first
LAST_TIME = 2000  # not before the last event of `HOSTILE_RUN`
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


@dataclass(frozen=True)
class LiveService:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    log: Path
    tokens: Mapping[str, str] = field(default_factory=dict)  # by kind: read, write

    def ask(self, path: str, body: Any = None, *, token: str | None = None, **headers: str) -> Reply:
        """GET a path, or POST a JSON body to it."""
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
        """Add events between the known nodes."""
        rows = events(n, seed=start, start=start)
        body = [{"src": NAMES[a % len(NAMES)], "dst": NAMES[b % len(NAMES)], "time": t} for a, b, t in rows]
        return self.ask("/events", {"events": body}, token=self.tokens.get("write"))


@contextmanager
def running(run: Path, data_dir: Path, *options: str, tokens: Mapping[str, str] | None = None) -> Iterator[LiveService]:
    """Start a service, wait until it is ready, and stop it at the end."""
    log = data_dir.with_suffix(".log")
    extra = {f"CORDGT_{kind.upper()}_TOKEN": value for kind, value in (tokens or {}).items()}
    with log.open("w") as stream:
        started = process(
            *("serve", run, "--port", "0", "--data-dir", data_dir, *options), extra=extra, stdout=stream, stderr=stream
        )
    try:
        yield LiveService(f"http://127.0.0.1:{_wait_for_port(started, log)}", started, log, tokens or {})
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _wait_for_port(started: subprocess.Popen[str], log: Path) -> int:
    """Return the port of the line that says "ready"."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        for line in log.read_text().splitlines():
            if '"message": "ready"' in line:
                return int(json.loads(line)["port"])
        time.sleep(0.05)
    raise RuntimeError(f"The service did not start: {log.read_text()}")
