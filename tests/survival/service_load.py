"""Measure a live service under load, with the load generator on the same machine.

    python tests/survival/service_load.py                 # about 2 minutes on two cores
    python tests/survival/service_load.py --soak 30

It measures, and compares with targets and with a bare endpoint of the same web server that only says hello:

1. durable events per second, in batches of 100;
2. seconds until the service is ready again after kill -9, with a million events;
3. latency of 50 questions per second for the top 10 among 10,000 candidates, while 500 events per second arrive, and
   the index is compacted and a checkpoint is written. Questions are sent on time, also if earlier ones are late, and a
   latency counts from the moment when the question was due.

The exit code is 1 if a target is missed. ``--soak`` instead sends 20 events and 2 questions per second for some
minutes, and prints the memory of the service. It must not grow by more than 5 % in the second half.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.live_service import Client, LiveService

from cordgt.events.stream import EventStream
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train_run

N_SOURCES, N_DESTINATIONS, BATCH, LARGE_BATCH = 50_000, 10_000, 100, 10_000
QUESTIONS_PER_SECOND, EVENTS_PER_SECOND = 50, 500
N_CLIENTS = 8  # connections that send questions on time
INGEST_TARGET, READY_TARGET, P99_TARGET = 2_000, 5.0, 100.0  # events per second, seconds, milliseconds
MAX_GROWTH = 1.05  # of memory in the second half of a soak
HELLO = """
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Events(BaseModel):
    events: list[dict[str, Any]]


@app.get("/hello")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


@app.post("/hello")
async def count(request: Events) -> dict[str, int]:
    return {"accepted": len(request.events)}


listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])
"""


def draw_pairs(rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
    """Draw sources and destinations, some of them much more often than others."""
    src = (N_SOURCES * rng.random(n) ** 2).astype(int)
    dst = (N_DESTINATIONS * rng.random(n) ** 2).astype(int)
    return [f"s{k}" for k in src], [f"d{k}" for k in dst]


def draw_events(rng: np.random.Generator, n: int, t: float) -> list[dict[str, Any]]:
    return [{"src": u, "dst": v, "time": t} for u, v in zip(*draw_pairs(rng, n), strict=True)]


def train(folder: Path, rng: np.random.Generator, model: str = "counts") -> Path:
    """Train a model on a short stream in which every destination occurs."""
    src, dst = draw_pairs(rng, 10_000)
    dst += [f"d{k}" for k in range(N_DESTINATIONS)]
    src += draw_pairs(rng, N_DESTINATIONS)[0]
    stream = EventStream.from_columns(src, dst, np.arange(len(src)))
    train_run(stream, make_settings(model, {"epochs": 1}, seed=0), folder)
    return folder


def in_threads(n: int, work: Callable[[int], None]) -> float:
    """Run ``work(k)`` in n threads; return the seconds until all have ended."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def ask_on_time(port: int, make_path: Callable[[], str], rate: float, seconds: float) -> np.ndarray:
    """GET ``rate`` paths per second; return the milliseconds from the moment each was due to its answer."""
    n = int(rate * seconds)
    latencies = np.full(n, np.nan)
    numbers, lock = iter(range(n)), threading.Lock()
    begin = time.perf_counter() + 0.1

    def work(_: int) -> None:
        client = Client(port)
        while True:
            with lock:
                k = next(numbers, None)
                path = make_path()
            if k is None:
                return
            due = begin + k / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            status, answer = client.get(path)
            assert status == 200, answer
            latencies[k] = 1000 * (time.perf_counter() - due)

    in_threads(N_CLIENTS, work)
    return latencies


def send_events(port: int, path: str, seconds: float, n_threads: int, t: float) -> float:
    """POST batches as fast as they are acknowledged, for some seconds; return the events per second."""
    n_sent = [0] * n_threads
    bodies = [{"events": draw_events(np.random.default_rng(k), BATCH, t)} for k in range(50)]
    stop = time.perf_counter() + seconds

    def work(k: int) -> None:
        client = Client(port)
        while time.perf_counter() < stop:
            status, answer = client.post(path, bodies[n_sent[k] % len(bodies)])
            assert status == 200, answer
            n_sent[k] += 1

    duration = in_threads(n_threads, work)
    return BATCH * sum(n_sent) / duration


def fill(client: Client, rng: np.random.Generator, n_events: int, t: float) -> int:
    """Send large batches until the service has ``n_events`` events; return its number of events."""
    cut = int(client.get("/health/ready")[1]["cut"])
    while cut < n_events:
        status, answer = client.post("/events", {"events": draw_events(rng, min(LARGE_BATCH, n_events - cut), t)})
        assert status == 200, answer
        cut = answer["cut"]
    return cut


class Trickle:
    """Sends batches at a steady rate in another thread; as a context."""

    def __init__(self, port: int, path: str, t: float) -> None:
        self._port, self._path, self._t = port, path, t
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.latencies: list[float] = []

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        client, rng, begin = Client(self._port), np.random.default_rng(9), time.perf_counter()
        while not self._is_over.is_set():
            body = {"events": draw_events(rng, BATCH, self._t + len(self.latencies))}
            due = begin + len(self.latencies) * BATCH / EVENTS_PER_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            status, answer = client.post(self._path, body)
            assert status == 200, answer
            self.latencies.append(1000 * (time.perf_counter() - due))


def memory_mb(server: LiveService) -> float:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS"))) / 1024


def cpu_seconds(server: LiveService) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_metric(client: Client, name: str) -> float:
    lines = client.get("/metrics")[1].splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


class Report:
    """Prints measurements, and remembers which targets were missed."""

    def __init__(self) -> None:
        self.n_missed = 0

    def check(self, name: str, text: str, is_met: bool) -> None:
        self.n_missed += not is_met
        print(f"{'ok    ' if is_met else 'MISSED'}  {name}: {text}", flush=True)


def quantiles(latencies: np.ndarray) -> str:
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    return f"median {p50:.1f} ms, p99 {p99:.1f} ms, max {latencies.max():.0f} ms"


def measure_hello(seconds: float) -> tuple[float, np.ndarray]:
    """Return the events per second, and the latencies under the load of part 3, of a server that does nothing."""
    command = [sys.executable, "-c", HELLO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            rate = send_events(port, "/hello", seconds / 2, 2, 0)
            with Trickle(port, "/hello", 0):
                latencies = ask_on_time(port, lambda: "/hello", QUESTIONS_PER_SECOND, seconds / 2)
        finally:
            server.kill()
    return rate, latencies


def measure(folder: Path, n_events: int, seconds: float, model: str) -> int:
    """Measure everything; return the number of targets that were missed."""
    report, rng = Report(), np.random.default_rng(0)
    run, data = train(folder / "run", rng, model), folder / "data"
    hello_rate, hello = measure_hello(seconds)
    print(f"hello: {hello_rate:,.0f} events per second in batches of {BATCH}; {quantiles(hello)}", flush=True)

    server = LiveService(run, data)
    rate = send_events(server.port, "/events", seconds / 2, 2, 1e6)
    text = f"{rate:,.0f} durable events per second, {rate / hello_rate:.2f} times the rate of hello"
    report.check(f"at least {INGEST_TARGET:,} events per second", text, rate >= INGEST_TARGET)
    fill(server.client(), rng, n_events, 1e6)
    server.kill()

    start = time.perf_counter()
    server = LiveService(run, data)
    ready = time.perf_counter() - start
    client = server.client()
    text = f"{ready:.1f} s with {fill(client, rng, 0, 0):,} events, {cpu_seconds(server):.1f} s of CPU time; "
    text += f"{memory_mb(server):.0f} MB"
    report.check(f"ready within {READY_TARGET:g} s after kill -9", text, ready <= READY_TARGET)

    # The index is compacted when it has grown by an eighth: so that this happens in the middle of the measurement.
    fill(client, rng, n_events + n_events // 8 - int(EVENTS_PER_SECOND * seconds / 2), 1e6)
    n_builds = read_metric(client, "cordgt_index_builds")
    names, cpu = iter(draw_pairs(rng, 1_000_000)[0]), cpu_seconds(server)
    with Trickle(server.port, "/events", 1.1e6) as trickle:
        latencies = ask_on_time(server.port, lambda: f"/recommend/{next(names)}?n=10", QUESTIONS_PER_SECOND, seconds)
    p99, hello_p99 = np.quantile(latencies, 0.99), np.quantile(hello, 0.99)
    text = f"{quantiles(latencies)}; p99 {p99 / hello_p99:.0f} times that of hello"
    report.check(
        f"{QUESTIONS_PER_SECOND} questions per second, p99 under {P99_TARGET:g} ms", text, bool(p99 < P99_TARGET)
    )
    n_sent, n_compactions = (
        BATCH * len(trickle.latencies),
        read_metric(server.client(), "cordgt_index_builds") - n_builds,
    )
    print(f"        meanwhile {n_sent / seconds:,.0f} events per second, {quantiles(np.array(trickle.latencies))}")
    print(f"        the service used {100 * (cpu_seconds(server) - cpu) / seconds:.0f} % of a core")
    print(f"        meanwhile {n_compactions:.0f} compactions; {memory_mb(server):.0f} MB at the end")
    report.check("exit code 0", str(code := server.stop()), code == 0)
    return report.n_missed


def soak(server: LiveService, minutes: float, pause: float = 300) -> bool:
    """Load a service lightly for a long time; print its memory. Return whether it stays flat in the second half."""
    client, rng, begin = server.client(), np.random.default_rng(1), time.perf_counter()
    k, next_line, at_half = 0, 0.0, 0.0
    while (elapsed := time.perf_counter() - begin) < 60 * minutes + 1:
        events = draw_events(rng, 20, 1e6 + k)
        status, receipt = client.post("/events", {"events": events, "key": str(k)})
        assert status == 200, receipt
        for event in events[:2]:
            assert client.get(f"/recommend/{event['src']}?n=10")[0] == 200
        at_half = at_half or (memory_mb(server) if elapsed > 30 * minutes else 0.0)
        if elapsed >= next_line:
            print(f"{next_line / 60:4.0f} min  {memory_mb(server):7.1f} MB  {receipt['cut']:,} events", flush=True)
            next_line += pause
        k += 1
        time.sleep(max(0.0, begin + k - time.perf_counter()))
    growth = memory_mb(server) / at_half
    print(f"{at_half:.1f} MB after half of the time; {growth:.3f} times as much at the end")
    return growth <= MAX_GROWTH


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--model", default="counts")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not chosen.soak:
            sys.exit(1 if measure(folder, chosen.events, chosen.seconds, chosen.model) else 0)
        with LiveService(train(folder / "run", np.random.default_rng(0), chosen.model), folder / "data") as server:
            is_flat = soak(server, chosen.soak)
        sys.exit(0 if is_flat else 1)


if __name__ == "__main__":
    main()
