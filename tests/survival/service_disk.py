"""Run a live service on a disk that fills up, and on one that becomes read-only. Needs root, to mount small disks.

    python tests/survival/service_disk.py

Events are sent until the disk is full, then space is made. Another disk, with ext4, becomes read-only after an error,
as a failing disk does, and is repaired. In between the service is killed with SIGKILL. A request that cannot be stored
must get 503 with a reason, questions must be answered all the time, and at the end exactly the acknowledged events must
be there. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.helpers import works, write_events
from tests.e2e.live_service import LiveService

N_BASE = 160  # events of `write_events`
DISK_BYTES = 6 << 20
MAX_REQUESTS = 5_000


class Disk:
    """A small file system, mounted at a folder; as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def mount(self) -> None:
        self._run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.folder))

    def unmount(self) -> None:
        self._run("umount", str(self.folder))

    def fill_up(self, free_bytes: int) -> Path:
        """Leave so many bytes free. Return the file to remove, to make room again."""
        stats, filler = os.statvfs(self.folder), self.folder / "filler"
        filler.write_bytes(b"x" * (stats.f_bavail * stats.f_frsize - free_bytes))
        return filler

    def __enter__(self) -> Disk:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def _run(self, *command: str) -> None:
        if subprocess.run(command).returncode:
            sys.exit(f"{command} failed. This script mounts disks, so it must be run as root.")


class FailingDisk(Disk):
    """A disk with ext4 that becomes read-only after an error."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._image = folder.with_name(f"{folder.name}.img")
        with self._image.open("wb") as stream:
            stream.truncate(4 * DISK_BYTES)
        self._run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        self._run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.folder))

    def fail(self) -> None:
        """Make it read-only, as an error does."""
        source = subprocess.run(["findmnt", "-no", "SOURCE", str(self.folder)], capture_output=True, text=True).stdout
        Path("/sys/fs/ext4", Path(source.strip()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Make it writable again. Nothing may use it."""
        self.unmount()
        subprocess.run(["e2fsck", "-p", str(self._image)], capture_output=True)
        self.mount()


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


def full_disk(run: Path, disk: Disk) -> None:
    """A full disk: the service is killed and started on it, then there is room again."""
    client, data = Client(), disk.folder / "data"
    server = LiveService(run, data, log=disk.folder.with_suffix(".log"))
    client.send(server)
    filler = disk.fill_up(free_bytes=400_000)
    n = 0
    while client.send(server)[0] == 200:
        n += 1
        if n == MAX_REQUESTS:
            check(False, "the disk fills up")
    check(n > 0, f"the disk was full after {n} requests of 100 events")
    check_refused(server, client, "full")
    client.check_events(server)
    server.kill()
    try:
        server = LiveService(run, data, log=disk.folder.with_suffix(".log"))
        print("       it starts on the full disk")
        client.check_events(server)
        server.kill()
    except RuntimeError as error:
        text = str(error).splitlines()[-1]
        check("Traceback" not in str(error) and "full" in text, f"it does not start on the full disk: {text}")
    filler.unlink()
    server = LiveService(run, data, log=disk.folder.with_suffix(".log"))
    client.check_events(server)
    client.send_again(server)
    client.check_events(server)
    check(server.stop() == 0, "exit code 0")


def full_disk_without_restart(run: Path, disk: Disk) -> None:
    """A full disk: there is room again while the service runs."""
    client = Client()
    with LiveService(run, disk.folder / "data", log=disk.folder.with_suffix(".log")) as server:
        client.send(server)
        filler = disk.fill_up(free_bytes=0)
        while client.send(server)[0] == 200:
            pass
        check_refused(server, client, "full")
        filler.unlink()
        client.send_again(server)
        check(server.client().get("/health/ready")[0] == 200, "ready again without a restart")
        client.check_events(server)


def read_only_disk(run: Path, disk: FailingDisk) -> None:
    """A disk that becomes read-only while the service runs; it starts again when the disk is repaired."""
    client, data = Client(), disk.folder / "data"
    server = LiveService(run, data, log=disk.folder.with_suffix(".log"))
    for _ in range(20):
        client.send(server)
    disk.fail()
    check_refused(server, client, "")
    client.check_events(server)
    server.kill()
    try:
        LiveService(run, data, log=disk.folder.with_suffix(".log")).kill()
        check(False, "it started on a read-only disk")
    except RuntimeError as error:
        text = str(error).splitlines()[-1]
        check("Traceback" not in str(error), f"it does not start on a read-only disk: {text}")
    disk.repair()
    server = LiveService(run, data, log=disk.folder.with_suffix(".log"))
    client.check_events(server)
    client.send_again(server)
    client.check_events(server)
    check(server.stop() == 0, "exit code 0")


def main() -> None:
    """Run everything."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, run = write_events(folder / "data.csv"), folder / "run"
        works("train", data, "--model", "counts", "--set", "epochs=1", "--no-report", "--out", run)
        for part, kind in ((full_disk, Disk), (full_disk_without_restart, Disk), (read_only_disk, FailingDisk)):
            print(f"{part.__doc__}", flush=True)
            with kind(folder / part.__name__) as disk:
                part(run, disk)  # type: ignore[operator]


if __name__ == "__main__":
    main()
