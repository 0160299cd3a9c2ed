"""Measure a live service under load, with the load generator on the same machine.

    python tests/survival/service_load.py --events 1000000
    python tests/survival/service_load.py --soak 30

It sends events in batches of 100 as fast as they are acknowledged; kills the service and measures the time until it is
ready again; then asks for the top 10 among 10,000 candidates while 500 events per second arrive. All rates are also
given relative to those of ``GET /health/live``, which does nothing. ``--soak`` instead sends 20 events and 2 questions
per second for some minutes, and prints the memory of the service every 5 minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.live_service import Client, LiveService

from cordgt.events.stream import EventStream
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train_run

N_SOURCES, N_DESTINATIONS, BATCH = 50_000, 10_000, 100


def draw_pairs(rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
    """Draw sources and destinations, some of them much more often than others."""
    src = (N_SOURCES * rng.random(n) ** 2).astype(int)
    dst = (N_DESTINATIONS * rng.random(n) ** 2).astype(int)
    return [f"s{k}" for k in src], [f"d{k}" for k in dst]


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


def ask(server: LiveService, make_path: Callable[[], str], seconds: float, n_threads: int) -> np.ndarray:
    """Ask as often as possible for some seconds; return the latencies in milliseconds."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    def work(_: int) -> None:
        client = server.client()
        while time.perf_counter() < stop:
            start = time.perf_counter()
            status, _answer = client.get(make_path())
            assert status == 200
            latencies.append(1000 * (time.perf_counter() - start))

    in_threads(n_threads, work)
    return np.array(latencies)


def describe(name: str, latencies: np.ndarray, seconds: float) -> None:
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    rate = len(latencies) / seconds
    print(f"{name}: {rate:,.0f} per second, median {p50:.1f} ms, p99 {p99:.1f} ms, max {latencies.max():.0f} ms")


def send_batch(client: Client, rng: np.random.Generator, t: float) -> float:
    src, dst = draw_pairs(rng, BATCH)
    events = [{"src": u, "dst": v, "time": t} for u, v in zip(src, dst, strict=True)]
    start = time.perf_counter()
    status, answer = client.post("/events", {"events": events})
    assert status == 200, answer
    return 1000 * (time.perf_counter() - start)


def memory_mb(server: LiveService) -> float:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS"))) / 1024


def soak(server: LiveService, minutes: float, pause: float = 300) -> None:
    """Load a service lightly for a long time; print its memory."""
    client, rng, begin = server.client(), np.random.default_rng(1), time.perf_counter()
    k, next_line = 0, 0.0
    while time.perf_counter() - begin < 60 * minutes + 1:
        src, dst = draw_pairs(rng, 20)
        events = [{"src": u, "dst": v, "time": 1e6 + k} for u, v in zip(src, dst, strict=True)]
        status, receipt = client.post("/events", {"events": events, "key": str(k)})
        assert status == 200, receipt
        for source in src[:2]:
            assert client.get(f"/recommend/{source}?n=10")[0] == 200
        if time.perf_counter() - begin >= next_line:
            print(f"{next_line / 60:4.0f} min  {memory_mb(server):7.1f} MB  {receipt['cut']:,} events", flush=True)
            next_line += pause
        k += 1
        time.sleep(max(0.0, begin + k - time.perf_counter()))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="counts")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run, data = train(Path(folder) / "run", rng, chosen.model), Path(folder) / "data"
        server = LiveService(run, data)
        if chosen.soak:
            soak(server, chosen.soak)
            print("exit code", server.stop())
            return
        hello = ask(server, lambda: "/health/live", 3, chosen.threads)
        describe("hello", hello, 3)
        n_batches = chosen.events // BATCH // 2

        def write(k: int) -> None:
            client, own = server.client(), np.random.default_rng(k)
            for _ in range(n_batches):
                send_batch(client, own, 1e6)  # one time: no event is late, however the clients interleave

        seconds = in_threads(2, write)
        print(f"ingest: {2 * n_batches * BATCH / seconds:,.0f} durable events per second, in batches of {BATCH}")
        server.kill()
        start = time.perf_counter()
        server = LiveService(run, data)
        cut = server.client().get("/health/ready")[1]["cut"]
        print(f"ready after {time.perf_counter() - start:.1f} s with {cut:,} events; {memory_mb(server):.0f} MB")
        is_over = threading.Event()
        commit_times: list[float] = []

        def trickle() -> None:
            client, own, k = server.client(), np.random.default_rng(9), 0
            begin = time.perf_counter()
            while not is_over.is_set():
                commit_times.append(send_batch(client, own, 2e6 + k))
                k += 1
                time.sleep(max(0.0, begin + k / 5 - time.perf_counter()))

        writer = threading.Thread(target=trickle)
        writer.start()
        names = iter(draw_pairs(rng, 1_000_000)[0])
        latencies = ask(server, lambda: f"/recommend/{next(names)}?n=10", chosen.seconds, chosen.threads)
        is_over.set()
        writer.join()
        describe(f"recommend among {N_DESTINATIONS:,}, with 500 events per second", latencies, chosen.seconds)
        print(f"events meanwhile: {100 * len(commit_times) / chosen.seconds:,.0f} per second, ", end="")
        print(f"median {np.median(commit_times):.1f} ms, max {max(commit_times):.0f} ms; {memory_mb(server):.0f} MB")
        print("quality", server.client().get("/quality")[1])
        print("exit code", server.stop())


if __name__ == "__main__":
    main()
