"""`cordgt serve` as a process: HTTP answers, kill -9, exact answers, swaps, and a clean end."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .helpers import call, events, fails, works, write_events
from .kill_rounds import ClientLog, check_after_kill, crash_program, kill_round
from .live_service import LiveService, require_service_packages
from .service_answers import check_answers

require_service_packages()

LAST_TIME = 10_000  # later than all times of the file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    data = write_events(folder / "data.csv")
    works("train", data, "--model", "counts", "--set", "epochs=1", "--no-report", "--out", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def other(run: Path) -> Path:
    """Another run on the same events."""
    folder = run.parent / "other"
    options = ("--set", "epochs=1", "--set", "hidden=4", "--no-report", "--out", folder)
    works("train", run.parent / "data.csv", "--model", "counts", *options)
    return folder


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with LiveService(run, tmp_path_factory.mktemp("data") / "service") as server:
        yield server


def make_events(n: int, start: int) -> list[dict[str, Any]]:
    return [{"src": (start + k) % 7, "dst": (start + 3 * k) % 11, "time": LAST_TIME + start + k} for k in range(n)]


def test_contract(server: LiveService) -> None:
    client = server.client()
    assert client.get("/health/live") == (200, {"status": "ok"})
    status, ready = client.get("/health/ready")
    assert status == 200 and ready["ready"] is True
    cut = ready["cut"]
    status, receipt = client.post("/events", {"events": make_events(3, 0), "key": "first"})
    assert (status, receipt["accepted"], receipt["cut"]) == (200, 3, cut + 3)
    assert client.post("/events", {"events": make_events(3, 0), "key": "first"})[1]["cut"] == cut + 3
    answer = client.recommend("3", "?n=4")
    assert {"source", "cut", "model", "answer_id", "partners"} <= answer.keys()
    assert answer["source"] == 3 and answer["cut"] == cut + 3 and len(answer["partners"]) == 4
    assert {"node", "score"} <= answer["partners"][0].keys()
    assert client.post("/replay", {"answer_id": answer["answer_id"]}) == (200, answer)
    listed = client.post("/recommend", {"source": 3, "n": 4, "candidates": [1, 2, 5]})[1]
    assert {row["node"] for row in listed["partners"]} <= {1, 2, 5}
    assert client.get("/recommend/3?candidates=1&candidates=2&candidates=5&n=4")[1]["partners"] == listed["partners"]
    status, scores = client.post("/score", {"pairs": [{"src": 3, "dst": 1}]})
    assert status == 200 and 0 <= scores["scores"][0]["score"] <= 1
    assert client.get("/model")[1]["model"] == "counts"
    text = client.get("/metrics")[1]
    assert f"cordgt_cut {cut + 3}.0" in text and "cordgt_events_accepted_total" in text
    assert client.get("/quality")[0] == 200
    assert "/recommend/{source}" in client.get("/openapi.json")[1]["paths"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/events", {"events": [{"src": 1, "dst": 2, "time": 1}]}, 409),
        ("POST", "/events", {"events": []}, 422),
        ("POST", "/events", {"event": []}, 422),
        ("POST", "/events", {"events": [{"src": "a", "dst": 2, "time": LAST_TIME}]}, 422),
        ("POST", "/replay", {"answer_id": "nonsense"}, 404),
        ("POST", "/model", {"run": "/no/such/run"}, 422),
        ("GET", "/recommend/x", None, 422),
        ("GET", "/recommend/3?n=0", None, 422),
        ("GET", "/recommend/3?within=day", None, 422),
        ("GET", "/active?within=7d", None, 422),
        ("GET", "/active", None, 422),
        ("GET", "/nothing", None, 404),
        ("PUT", "/events", None, 405),
    ],
)
def test_wrong_requests_say_what_is_wrong(server: LiveService, method: str, path: str, body: Any, status: int) -> None:
    answered, content = server.client().request(method, path, body)
    assert answered == status
    assert content["error"] and "Traceback" not in content["error"]


def test_logs_are_lines_of_json(server: LiveService) -> None:
    server.client().get("/recommend/3?n=2")
    records = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    requests = [record for record in records if record["message"] == "request"]
    assert requests and {"method", "path", "status", "ms"} <= requests[-1].keys()


def test_answers_during_ingest_equal_the_commands_on_a_file_of_the_first_cut_events(run: Path, tmp_path: Path) -> None:
    """`tests/survival/service_answers.py` does the same with 1,000 questions."""
    answers = check_answers(run, tmp_path / "data", events(160 + 60), 160, n_questions=30, n_commands=1)
    assert len({answer["cut"] for answer in answers}) > 3


def test_retrain_promotes_and_one_command_rolls_back(run: Path, tmp_path: Path) -> None:
    """The steps of docs/nightly.md, with a limit that the new run surely meets, and one that it surely does not."""
    data = tmp_path / "service"
    with LiveService(run, data) as service:
        client = service.client()
        first = client.get("/model")[1]["id"]
        assert "nothing to train" in works("retrain", data, "--out", tmp_path / "none", "--device", "cpu").err
        client.post("/events", {"events": make_events(60, 0)})
        promote = ("--url", service.url, "--device", "cpu", "--set", "epochs=1", "--set", "lr=0.01")
        result = call("retrain", data, "--out", tmp_path / "worse", *promote, "--min-gain", 1)
        assert result.code == 3 and "not better" in result.err
        assert client.get("/model")[1]["id"] == first
        works("retrain", data, "--out", tmp_path / "better", *promote, "--min-gain", -1)
        second = client.get("/model")[1]
        assert second["id"] != first and second["trained_on"] == 160 + 60
        assert client.recommend("3")["model"] == second["id"]
        assert client.post("/model", {"rollback": True})[1]["id"] == first
        works("data", "export", data, tmp_path / "all.csv")
        assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + 160 + 60
    fails("retrain", tmp_path, "--out", tmp_path / "x", containing="data folder")
    fails("retrain", data, "--out", tmp_path / "x", *promote, "--min-gain", -1, containing="does not answer")


def test_kill_under_load_loses_nothing(run: Path, tmp_path: Path) -> None:
    """`tests/survival/service.py` does the same 20 times, and at more points."""
    rng, log, marker = random.Random(0), ClientLog(), tmp_path / "marker"
    program = crash_program("between commit and acknowledgement", marker, 10)
    server = LiveService(run, tmp_path / "data", program=program)
    kill_round(server, log, rng)
    assert marker.read_text() == program[1]
    assert log.acknowledged and log.answers and server.process.returncode == -signal.SIGKILL
    server = LiveService(run, tmp_path / "data")
    check_after_kill(server, log, 160, rng)
    assert log.n_committed_without_answer > 0
    # Each request has a node of its own, so the pairs count how often it was taken.
    client = server.client()
    for key in list(log.acknowledged)[-5:]:
        node = log.sent[key][0]["src"]
        met = {row["node"]: row["met"] for row in client.recommend(str(node), "?n=100")["partners"]}
        assert met[node % 11] == len(log.sent[key])
    assert server.stop() == 0


CRASH = """
import os, signal, sys
from cordgt.serving.service import Service, ServiceOptions
from cordgt.serving import {module} as module
from pathlib import Path

service = Service(sys.argv[1], ServiceOptions(Path(sys.argv[2]), device="cpu"))
original = module.{name}

def crash(*args, **kwargs):
    if {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    original(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

module.{name} = crash
{action}
import time; time.sleep(10)  # the engine works in another thread
print("not reached")
"""
ADD = 'service.add_events([{"src": 1, "dst": 2, "time": 20000}], "key").result()'
SWAP = "service.swap_model(sys.argv[3])"


@pytest.mark.parametrize(
    ("module", "name", "before", "action"),
    [
        ("sqlite_log", "SqliteLog.append", False, ADD),  # between commit and acknowledgement
        ("live_history", "GrowingIndex._start_compaction", False, ADD),  # while the index is built again
        ("model_store", "ModelStore.write_state", True, SWAP),
        ("model_store", "ModelStore.write_state", False, SWAP),
    ],
)
def test_crash_at_a_chosen_point(
    run: Path, other: Path, tmp_path: Path, module: str, name: str, before: bool, action: str
) -> None:
    from cordgt.serving.service import Service, ServiceOptions

    if name.startswith("GrowingIndex"):
        action = f"service.live.index_builder._layout.half_events = 0\n{action}"
    code = CRASH.format(module=module, name=name, before=before, action=action)
    command = [sys.executable, "-c", code, str(run), str(tmp_path / "data"), str(other)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL and "not reached" not in ended.stdout, ended.stderr
    service = Service(run, ServiceOptions(tmp_path / "data", device="cpu"))
    n_base = 160
    if action.endswith(ADD):
        again = service.add_events([{"src": 1, "dst": 2, "time": 20000}], "key").result()
        assert again.repeated and service.cut == n_base + 1
    else:
        assert (service.model.path == str(run)) == before
        assert service.recommend(1).result()["model"] == service.model.id
    service.close()


def test_hangup_loads_the_run_again(run: Path, other: Path, tmp_path: Path) -> None:
    """SIGHUP after `cordgt train --replace`: the link leads to a new version."""
    link = tmp_path / "live"
    link.symlink_to(run)
    server = LiveService(link, tmp_path / "data")
    first = server.client().get("/model")[1]["id"]
    link.unlink()
    link.symlink_to(other)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while server.client().get("/model")[1]["id"] == first and time.monotonic() < deadline:
        time.sleep(0.1)
    client = server.client()
    assert client.get("/model")[1]["id"] != first
    assert client.post("/model", {"rollback": True})[1]["id"] == first
    assert client.post("/model", {"rollback": True})[0] == 422
    assert server.stop() == 0
