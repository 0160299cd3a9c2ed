"""Simulate a month of nights: append a day, train from the last run, compare, recommend; and what goes wrong.

    python tests/survival/month.py --nights 30

Some days are empty, some are appended again, some processes are killed with SIGKILL at random moments of `append` and
of `train`, and the disk fills up. Each failure is repaired as docs/nightly.md says: by the same command again. At the
end the store must equal, bit for bit, a store made from all days at once. Every message and exit code is checked. A
reader opens the latest run all the time, and must always get a complete run.

Every command runs in a process forked from one that has imported everything and computed nothing. The disk is a tmpfs
of 16 MB. Without the right to mount one, a limit on the size of files (RLIMIT_FSIZE) takes its place.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
FORK = multiprocessing.get_context("fork")
DISK_BYTES = 16 << 20
FULL_DISK = ("No space left on device", "File too large")
# What goes wrong, in turn.
APPEND_TROUBLE = ("kill", "empty", "repeated", "full disk", "none")
TRAIN_TROUBLE = ("none", "kill", "full disk", "kill and resume", "kill")
TINY = ("fanout=3,1", "hidden=8", "heads=2", "layers=1", "td_dim=8", "sd_dim=8", "batch_size=100")
Row = tuple[str, str, int]


class Result(NamedTuple):
    """What a command left: its exit code (-9 if it was killed), what it printed, and its seconds."""

    code: int
    text: str
    seconds: float


def run(*words: Any, kill_after: float | None = None, max_file_bytes: int | None = None) -> Result:
    """Run ``cordgt WORDS`` in a process; kill it after some seconds, or limit the size of its files."""
    receive, send = os.pipe()  # not a file, whose size could be limited; it holds 64 kB, more than any command prints

    def child() -> None:
        for stream in (1, 2):
            os.dup2(send, stream)
        if max_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
        from cordgt import cli

        sys.argv = ["cordgt", *map(str, words)]
        cli.main()

    start = time.monotonic()
    process = FORK.Process(target=child)
    process.start()
    process.join(300 if kill_after is None else kill_after)
    if process.exitcode is None:
        process.kill()
        process.join()
    os.close(send)
    with open(receive, "rb") as output:
        return Result(int(process.exitcode or 0), output.read().decode(), time.monotonic() - start)


def expect(result: Result, code: int, *texts: str) -> Result:
    """Check the exit code and that each text was printed; each text may offer alternatives, separated by |."""
    missing = [text for text in texts if not any(k in result.text for k in text.split("|"))]
    if result.code != code or missing or "Traceback" in result.text:
        raise SystemExit(f"expected code {code} and {missing or texts}, got {result.code}:\n{result.text}")
    return result


# -------------------- the disk


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system at a folder; False if that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    is_mounted = shutil.which("mount") is not None and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full_disk(disk: Path, is_mounted: bool, free_bytes: int) -> Iterator[dict[str, Any]]:
    """Fill the disk up to some bytes. Yields the options of `run` that do it instead, without a disk of our own."""
    if not is_mounted:
        yield {"max_file_bytes": free_bytes // 100}  # of each file, and most files here are small
        return
    stats, filler = os.statvfs(disk), disk / "filler"
    filler.write_bytes(b"x" * max(stats.f_bavail * stats.f_frsize - free_bytes, 0))
    try:
        yield {}
    finally:
        filler.unlink()


# -------------------- the days


def make_days(nights: int, draw: random.Random) -> list[list[Row]]:
    """Events of each day, in order of time. A day begins at the time at which the day before ended."""
    moment, days = 1_000_000, []
    for night in range(nights + 1):
        rows = []
        for _ in range(400 if night == 0 else draw.randrange(30, 60)):
            moment += draw.choice((0, 0, 1, 7))
            source = draw.randrange(20 + 2 * night)
            rows.append((f"u{source}", f"v{(source + draw.choice((0, 1, 1, 2, 5))) % (12 + night)}", moment))
        days.append(rows)
    return days


def write_day(path: Path, rows: list[Row]) -> Path:
    path.write_text("\n".join(["src,dst,time", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def store_content(path: Path) -> dict[str, Any]:
    """Return every array of a store as bytes, and its latest counts and fingerprints, which cover the ids."""
    from cordgt.store.store import open_store

    store = open_store(path)
    arrays = {name: (k.dtype, (path / k.file).read_bytes()[: k.n_bytes]) for name, k in store.arrays.items()}
    return arrays | {"latest": store.generations[-1]}


# -------------------- the reader


def read_all_the_time(link: Path, stop: Any, counts: Any) -> None:
    """Open the latest run and answer a query, until ``stop`` is set. Counts answers and runs."""
    from cordgt.inference.run import Run

    seeds = set()
    while not stop.is_set():
        loaded = Run.load(link, "cpu")
        time.sleep(0.3)  # a new run may be published before the weights are read
        if loaded.settings.seed != loaded.metrics["seed"] or not loaded.recommend("u1", top=3):
            os._exit(1)
        seeds.add(loaded.settings.seed)
        counts[0], counts[1] = counts[0] + 1, len(seeds)


# -------------------- the nights


class Month:
    """The store, the runs and what has happened so far."""

    def __init__(self, home: Path, disk: Path, is_mounted: bool, chosen: argparse.Namespace) -> None:
        self.home, self.disk, self.is_mounted, self.draw = home, disk, is_mounted, random.Random(chosen.seed)
        self.store, self.link = disk / "log.store", disk / "runs" / "now"
        self.days, self.is_quick = make_days(chosen.nights, self.draw), chosen.quick
        self.counts, self.n_events = Counter[str](), len(self.days[0])
        self.sources = home / "sources.csv"
        self.sources.write_text("src\nu1\nu2\nu3\n")
        settings = [word for k in (TINY if chosen.model != "counts" else ()) for word in ("--set", k)]
        self.options = ["--model", chosen.model, "--set", "epochs=2", *settings, "--device", "cpu", "--no-report"]
        self.append_seconds = self.train_seconds = 1.0

    def train_command(self, night: int) -> list[Any]:
        init = ["--init", self.link] if night else []
        return [
            "train",
            self.store,
            *self.options,
            *init,
            "--seed",
            night,
            "--out",
            self.link,
            "--replace",
            "--keep",
            3,
        ]

    def begin(self) -> None:
        expect(run("data", "convert", write_day(self.home / "day-00.csv", self.days[0]), self.store), 0)
        expect(run(*self.train_command(0)), 0, "is now a link to now.1")

    def night(self, night: int) -> str:
        """Simulate one night, and return what went wrong in it."""
        trouble = APPEND_TROUBLE[(night - 1) % 5], TRAIN_TROUBLE[(night - 1) % 5]
        self.append(night, trouble[0])
        found = store_content(self.store)["latest"]["events"]
        assert found == self.n_events, f"the store has {found} events; {self.n_events} were expected"
        former = os.readlink(self.link)
        self.train(night, trouble[1])
        latest = os.readlink(self.link)
        assert latest != former, "the new run must be published"
        if not self.is_quick:
            self.ask(former)
        names = sorted(path.name for path in self.link.parent.iterdir())
        assert len(names) <= 5, f"the latest run, three before it, and the link: {names}"
        return ", ".join(f"{what} at {when}" for what, when in zip(trouble, ("append", "train"), strict=True))

    def ask(self, former: str) -> None:
        """Check the store, compare the run with the former one, and ask for recommendations."""
        expect(run("data", "check", self.store), 0, f"is intact: {self.n_events:,} events")
        limits = ["--bootstrap", 50, "--max-drop", "ap=0.9"]
        expect(run("compare", self.link.with_name(former), self.link, *limits), 0, "points|No clear difference")
        code = run("compare", self.link.with_name(former), self.link, *limits, "--fail-below", "ap=1").code
        assert code == 3, "a run below the limit has exit code 3"
        answers = self.home / "answers.csv"
        expect(run("recommend", self.link, "--sources", self.sources, "--output", answers), 0)

    # -------------------- append

    def append(self, night: int, trouble: str) -> None:
        rows = [] if trouble == "empty" else self.days[night]
        day = write_day(self.home / f"day-{night:02d}.csv", rows)
        if trouble == "empty":
            self.days[night] = []
            if self.draw.random() < 0.5:
                day.write_bytes(b"")
            expect(run("data", "append", self.store, day), 0, "is empty|no rows", "Nothing was appended", "unchanged")
            self.counts["empty days"] += 1
            return
        if trouble == "kill":
            self.kill_append(day, len(rows))
        elif trouble == "full disk":
            self.fill_disk_in_append(day)
        result = run("data", "append", self.store, day)
        if trouble == "none":
            self.append_seconds = result.seconds
        expect(result, 0, f"added {len(rows)} events|the same {len(rows)} events were added")
        self.n_events += len(rows)
        if trouble == "repeated":
            for other in {night, self.draw.randrange(night + 1)}:
                again = list(self.days[other])
                self.draw.shuffle(again)
                if again:
                    copy = write_day(self.home / "again.csv", again)
                    expect(run("data", "append", self.store, copy), 0, "were added to", "unchanged")
                    self.counts["repeated days"] += 1

    def kill_append(self, day: Path, n: int) -> None:
        for _ in range(1 if self.is_quick else 3):
            result = run("data", "append", self.store, day, kill_after=self.draw.uniform(0, 1.2 * self.append_seconds))
            found = store_content(self.store)["latest"]["events"]
            assert found in (self.n_events, self.n_events + n), "a killed append leaves all of the day or nothing"
            self.counts["kills of append" if result.code == -9 else "appends that were faster than the kill"] += 1
            if found > self.n_events:
                self.counts["kills after the day was stored"] += result.code == -9
                return

    def fill_disk_in_append(self, day: Path) -> None:
        before = store_content(self.store)
        for _ in range(2):
            with full_disk(self.disk, self.is_mounted, self.draw.randrange(0, 6) * 4096) as options:
                result = run("data", "append", self.store, day, **options)
            if result.code == 0:
                self.counts["appends that fitted on the full disk"] += 1
                return
            expect(result, 2, "|".join(FULL_DISK), "unchanged")
            assert store_content(self.store) == before, "a full disk changes nothing"
            self.counts["full disks at append"] += 1

    # -------------------- train

    def train(self, night: int, trouble: str) -> None:
        command, former = self.train_command(night), os.readlink(self.link)
        if trouble.startswith("kill"):
            result = run(*command, kill_after=self.draw.uniform(0, 1.1 * self.train_seconds))
            self.counts["kills of train" if result.code == -9 else "trainings that were faster than the kill"] += 1
            if os.readlink(self.link) != former:
                return
        elif trouble == "full disk":
            with full_disk(self.disk, self.is_mounted, self.draw.randrange(0, 4) * 4096) as options:
                expect(run(*command, **options), 2, "|".join(FULL_DISK))
            self.counts["full disks at train"] += 1
        assert os.readlink(self.link) == former, "a failed night leaves the former run"
        result = run(*command, *(["--resume"] if trouble.endswith("resume") else []))
        expect(result, 0, "is now a link to now.")
        if trouble == "none":
            self.train_seconds = result.seconds
        config = (self.link / "config.toml").read_text()
        assert f"events = {self.n_events}\n" in config, "the new run must know all events"

    # -------------------- the end

    def check_all(self) -> None:
        """Compare the store with one made from all days at once."""
        whole = write_day(self.home / "whole.csv", [row for day in self.days for row in day])
        expect(run("data", "convert", whole, self.home / "whole.store"), 0)
        expect(run("data", "check", self.store), 0, f"is intact: {self.n_events:,} events")
        found, expected = (store_content(path) for path in (self.store, self.home / "whole.store"))
        differing = [name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name)]
        if differing:
            raise SystemExit(f"The store differs from one made from all days at once: {', '.join(sorted(differing))}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nights", type=int, default=30)
    options.add_argument("--seed", type=int, default=0, help="seed of the events and of the kill times")
    options.add_argument("--model", default="counts", help="counts, or a small cordgt")
    options.add_argument("--quick", action="store_true", help="a short test: fewer kills, and no questions to the runs")
    chosen = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(SOURCE))
    import torch._dynamo  # noqa: F401  # Adam imports it, and it takes longer than the training

    from cordgt.cli import writers  # noqa: F401
    from cordgt.store import append, masked_index  # noqa: F401
    from cordgt.workflows import train  # noqa: F401

    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk") as is_mounted:
        print("full disk:", "a tmpfs of 16 MB" if is_mounted else "RLIMIT_FSIZE, because mounting is not allowed")
        month = Month(Path(folder), Path(folder) / "disk", is_mounted, chosen)
        month.begin()
        stop, counts = FORK.Event(), FORK.Array("i", 2)
        reader = FORK.Process(target=read_all_the_time, args=(month.link, stop, counts))
        reader.start()
        try:
            for night in range(1, chosen.nights + 1):
                start = time.monotonic()
                trouble = month.night(night)
                print(f"night {night:2}: {month.n_events:5} events, {os.readlink(month.link)}, {trouble}", end="")
                print(f" ({time.monotonic() - start:.1f} s)", flush=True)
        finally:
            stop.set()
            reader.join(60)
        month.check_all()
        print(json.dumps(month.counts, indent=1))
        print(f"The reader got {counts[0]} answers from {counts[1]} runs.")
        if reader.exitcode != 0 or not counts[0]:
            raise SystemExit(f"The reader failed with code {reader.exitcode}.")
    print(f"{chosen.nights} nights: nothing lost, every message right")


if __name__ == "__main__":
    main()
