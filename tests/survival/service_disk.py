"""Run a live service on a disk that fills up, and on one that becomes read-only. Needs root, to mount a small tmpfs.

    python tests/survival/service_disk.py

Events are sent until the disk is full, then space is made; the disk becomes read-only, then writable again. In between
the service is killed with SIGKILL. A request that cannot be stored must get 503 with a reason, questions must be
answered all the time, and at the end exactly the acknowledged events must be there. The exit code is 1 if anything is
wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.helpers import works, write_events
from tests.e2e.live_service import LiveService

N_BASE = 160  # events of `write_events`
DISK_BYTES = 6 << 20
MAX_REQUESTS = 5_000


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system at a folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount).returncode:
        sys.exit("This script mounts a tmpfs, so it must be run as root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Client:
    """Sends events with a key each, and counts those that were acknowledged."""

    def __init__(self) -> None:
        self.n_acknowledged = self.n_sent = 0
        self.refused: list[dict[str, Any]] = []  # requests to send again

    def send(self, server: LiveService, n: int = 100) -> tuple[int, Any]:
        """Send n events; return status and answer."""
        self.n_sent += 1
        node = 1000 + self.n_sent
        events = [{"src": node, "dst": node % 11, "time": 30_000} for _ in range(n)]
        return self.post(server, {"events": events, "key": str(self.n_sent)})

    def post(self, server: LiveService, body: dict[str, Any]) -> tuple[int, Any]:
        """Send a request; remember it if it is refused."""
        status, answer = server.client().post("/events", body)
        if status == 200:
            self.n_acknowledged += 0 if answer["repeated"] else len(body["events"])
        else:
            self.refused.append(body)
        return status, answer

    def send_again(self, server: LiveService) -> None:
        """Send what was refused."""
        refused, self.refused = self.refused, []
        for body in refused:
            status, answer = self.post(server, body)
            check(status == 200 and not answer["repeated"], f"a refused request is accepted later: {answer}")

    def check_events(self, server: LiveService) -> None:
        """Exactly the acknowledged events are there, and a question is answered."""
        cut = server.client().recommend("3", "?n=3")["cut"]
        check(cut == N_BASE + self.n_acknowledged, f"{cut:,} events, {N_BASE + self.n_acknowledged:,} acknowledged")


def check(is_right: bool, text: str) -> None:
    print("ok    " if is_right else "WRONG ", text, flush=True)
    if not is_right:
        sys.exit(1)


def check_refused(server: LiveService, client: Client, word: str) -> None:
    """A request is refused with a reason, and the service says that it is not ready."""
    status, answer = client.send(server)
    check(status == 503 and word in answer["error"], f"{status}: {answer['error']}")
    status, answer = server.client().get("/health/ready")
    check(status == 503 and word in answer["reason"], f"not ready: {answer['reason']}")


def full_disk(run: Path, disk: Path) -> None:
    """Fill the disk, kill the service, make room."""
    client, filler = Client(), disk / "filler"
    server = LiveService(run, disk / "data")
    client.send(server)
    stats = os.statvfs(disk)
    filler.write_bytes(b"x" * (stats.f_bavail * stats.f_frsize - 400_000))
    n = 0
    while client.send(server)[0] == 200:
        n += 1
        check(n < MAX_REQUESTS, "the disk fills up") if n == MAX_REQUESTS else None
    check(n > 0, f"the disk was full after {n} requests of 100 events")
    check_refused(server, client, "full")
    client.check_events(server)
    server.kill()
    try:
        server = LiveService(run, disk / "data")
        print("       it starts on the full disk")
        client.check_events(server)
        server.kill()
    except RuntimeError as error:
        text = str(error).splitlines()[-1]
        check("Traceback" not in str(error) and "full" in text, f"it does not start on the full disk: {text}")
    filler.unlink()
    server = LiveService(run, disk / "data")
    client.check_events(server)
    client.send_again(server)
    client.check_events(server)
    check(server.stop() == 0, "exit code 0")


def full_disk_without_restart(run: Path, disk: Path) -> None:
    """Fill the disk and make room while the service runs."""
    client, filler = Client(), disk / "filler"
    with LiveService(run, disk / "data") as server:
        client.send(server)
        stats = os.statvfs(disk)
        filler.write_bytes(b"x" * (stats.f_bavail * stats.f_frsize))
        while client.send(server)[0] == 200:
            pass
        check_refused(server, client, "full")
        filler.unlink()
        client.send_again(server)
        check(server.client().get("/health/ready")[0] == 200, "ready again without a restart")
        client.check_events(server)


def read_only_disk(run: Path, disk: Path) -> None:
    """Make the disk read-only while the service runs, and start it on one."""

    def remount(mode: str) -> None:
        # A tmpfs with files open for writing refuses a plain remount; a bind mount over itself does not.
        subprocess.run(["mount", "-o", f"remount,bind,{mode}", str(disk)], check=True)

    client = Client()
    server = LiveService(run, disk / "data")
    client.send(server)
    server.kill()
    remount("ro")
    try:
        LiveService(run, disk / "data").kill()
        check(False, "it started on a read-only disk")
    except RuntimeError as error:
        text = str(error).splitlines()[-1]
        check("Traceback" not in str(error), f"it does not start on a read-only disk: {text}")
    remount("rw")
    server = LiveService(run, disk / "data")
    client.check_events(server)
    for name in ("events.sqlite", "events.sqlite-wal", "events.sqlite-shm"):  # as a failing disk, while it runs
        (disk / "data" / name).chmod(0o400)
    server.kill()


def main() -> None:
    """Run everything."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, run = write_events(folder / "data.csv"), folder / "run"
        works("train", data, "--model", "counts", "--set", "epochs=1", "--no-report", "--out", run)
        for part in (full_disk, full_disk_without_restart, read_only_disk):
            print(f"{part.__doc__}", flush=True)
            with small_disk(folder / part.__name__):
                part(run, folder / part.__name__)


if __name__ == "__main__":
    main()
