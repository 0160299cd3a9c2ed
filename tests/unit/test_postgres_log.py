"""`PostgresLog` on a real PostgreSQL server, started for the test. Skipped without the server or psycopg."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.errors import SettingError
from cordgt.serving.errors import LogDamagedError, LogUnavailableError
from cordgt.serving.event_batch import EventBatch
from cordgt.serving.event_log import LogRecord

pytest.importorskip("psycopg", reason="the log in PostgreSQL needs cordgt[postgres]")
FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def find_program(name: str) -> str | None:
    return shutil.which(name) or next((str(f / name) for f in FOLDERS if (f / name).exists()), None)


class PostgresServer:
    """A server of its own in a folder, on a Unix socket. It refuses to run as root, so another user runs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._user = {"user": "postgres"}
            shutil.chown(folder, "postgres")
            for parent in folder.parents:
                if parent.stat().st_mode & 0o001 == 0:
                    parent.chmod(parent.stat().st_mode | 0o011)
        initdb = [find_program("initdb"), "-D", folder / "db", "-A", "trust", "-U", "cordgt", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **self._user)
        self.url = f"postgresql://cordgt@/postgres?host={folder}"
        self.start()

    def start(self) -> None:
        options = ["-D", self._folder / "db", "-k", self._folder, "-c", "listen_addresses="]
        command = [find_program("postgres"), *options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder, **self._user
        )
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def crash(self) -> None:
        self._process.send_signal(3)  # SIGQUIT: immediate shutdown, as after a crash
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    if not find_program("postgres") or not find_program("initdb"):
        pytest.skip("no PostgreSQL server is installed (Debian: apt install postgresql)")
    server = PostgresServer(tmp_path_factory.mktemp("pg"))
    yield server
    server.stop()


def make_record(first: int, key: str | None = None) -> LogRecord:
    return LogRecord(first, 1, key, "d", EventBatch(["a\x00"], ["b"], np.array([first]), None).to_json())


def test_log_in_postgres(server: PostgresServer) -> None:
    from cordgt.serving.postgres_log import PostgresLog

    log = PostgresLog(server.url)
    assert log.count == 0 and list(log.read()) == []
    log.append([make_record(0, "k"), make_record(1)])
    log.append([make_record(2)])
    assert log.find("k") == make_record(0, "k") and log.find("x") is None
    assert list(log.read()) == [make_record(0, "k"), make_record(1), make_record(2)]
    assert list(log.read(2)) == [make_record(2)]
    log.save_question("q", b"\x00body")
    log.save_question("q", b"\x00body")
    assert log.load_question("q") == b"\x00body" and log.load_question("r") is None
    with pytest.raises(LogUnavailableError, match="in use"):
        PostgresLog(server.url)

    server.crash()
    with pytest.raises(LogUnavailableError):
        log.append([make_record(3)])
    assert log.count == 3
    server.start()
    log.append([make_record(3)])  # it connects again
    log.close()

    log = PostgresLog(server.url)
    assert log.count == 4
    log._run(lambda db: db.execute("UPDATE cordgt_batches SET count = 2 WHERE first = 1"))
    with pytest.raises(LogDamagedError, match="at event 1"):
        list(log.read())
    log.close()


def test_service_with_a_log_in_postgres(server: PostgresServer, tmp_path: Path) -> None:
    import psycopg

    from cordgt.events.stream import EventStream
    from cordgt.serving.retraining import read_events
    from cordgt.serving.service import Service, ServiceOptions
    from cordgt.training.settings import make_settings
    from cordgt.workflows.train import train_run

    with psycopg.connect(server.url) as database:
        database.execute("DROP TABLE IF EXISTS cordgt_batches, cordgt_questions")
    rng = np.random.default_rng(0)
    stream = EventStream.from_columns(rng.integers(0, 9, 100), rng.integers(0, 9, 100), np.arange(100))
    train_run(stream, make_settings("popularity", {}, seed=0), tmp_path / "run", device="cpu")
    options = ServiceOptions(tmp_path / "data", device="cpu", log_url=server.url)
    service = Service(tmp_path / "run", options)
    service.add_events([{"src": 1, "dst": 77, "time": 100}], "k").result()
    answer = service.recommend(1, n=50).result()
    assert 77 in [row["node"] for row in answer["partners"]]
    service.close()
    service = Service(tmp_path / "run", options)
    assert service.cut == 101
    assert service.add_events([{"src": 1, "dst": 77, "time": 100}], "k").result().repeated
    assert service.replay(answer["answer_id"]).result() == answer
    assert read_events(options.data_dir, server.url).n_events == 101  # while the service runs
    service.close()
    for changed, text in (
        ({"data_dir": tmp_path / "other"}, "another data folder"),  # it would mix the events of two services
        ({"log_url": ""}, "in PostgreSQL"),
    ):
        with pytest.raises(SettingError, match=text):
            Service(tmp_path / "run", replace(options, **changed))
    with psycopg.connect(server.url) as database:
        database.execute("DELETE FROM cordgt_log")
    with pytest.raises(SettingError, match="not in this database"):
        Service(tmp_path / "run", options)
