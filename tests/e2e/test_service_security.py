"""The safety rules of a running service: tokens, limits, fuzzed requests, and the proxy in front of it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .helpers import fails
from .live_service import LAST_TIME, SCRIPT, LiveService, require_service_packages, train_run

TOKENS = {"read": "read-secret", "write": "write-secret"}
EVENT = {"src": "ann", "dst": "joann", "time": LAST_TIME}
DEPLOY = Path(__file__).parents[2] / "deploy"
FUZZER = Path(__file__).parents[1] / "fuzz" / "service_requests.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_service_packages()
    return train_run(tmp_path_factory.mktemp("safe"))


@pytest.fixture(scope="module")
def service(run: Path) -> Iterator[LiveService]:
    # Late events are accepted, so that the fuzzed ones, some from the far future, do not matter to other tests.
    with LiveService(run, run.with_name("data-dir"), "--late", "accept", tokens=TOKENS) as started:
        yield started


def test_each_token_opens_its_own_requests(service: LiveService) -> None:
    assert service.ask("/events", {"events": [EVENT]}).status == 401
    assert service.ask("/events", {"events": [EVENT]}, token="read-secret").status == 403
    assert service.ask("/recommend/ann").status == 401
    assert service.ask("/recommend/ann", token="write-secret").status == 403
    assert service.ask("/metrics").status == 401
    cut = service.ask("/status", token="read-secret").json["cut"]
    receipt = service.ask("/events", {"events": [EVENT]}, token="write-secret")
    assert receipt.status == 200 and receipt.json["cut"] == cut + 1  # the refused ones added nothing
    assert service.ask("/recommend/ann", token="read-secret").json["cut"] == cut + 1
    assert {path: service.ask(path).status for path in ("/", "/docs", "/health/live", "/health/ready")} == {
        "/": 200,
        "/docs": 200,
        "/health/live": 200,
        "/health/ready": 200,
    }


def test_tokens_do_not_reach_the_log(service: LiveService) -> None:
    service.ask("/status", token="a-wrong-secret")
    assert "secret" not in service.log.read_text()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with length", "chunked"])
def test_a_body_of_a_gigabyte_is_cut_off(service: LiveService, is_chunked: bool) -> None:
    parts = urlsplit(service.url)
    length = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 1000000000"
    head = f"POST /events HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer write-secret\r\n{length}\r\n\r\n"
    chunk = b"x" * 2**20
    n_sent = 0
    with socket.create_connection((parts.hostname, parts.port), 60) as connection:
        connection.sendall(head.encode())
        try:
            for _ in range(1000):
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk) if is_chunked else chunk)
                n_sent += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert n_sent < 100  # megabytes: the limit, and what fits into the buffers of both ends
    assert service.ask("/health/ready").status == 200


def test_numbers_of_events_and_candidates_are_limited(service: LiveService) -> None:
    many = service.ask("/events", {"events": [EVENT] * 10_001}, token="write-secret")
    assert many.status == 413 and "10,000" in many.json["error"]
    pairs = [{"src": "a", "dst": "b"}] * 100_001
    assert service.ask("/score", {"pairs": pairs}, token="read-secret").status == 413
    candidates = {"source": "ann", "candidates": ["x"] * 100_001}
    assert service.ask("/recommend", candidates, token="read-secret").status == 413


def test_errors_show_no_internals(service: LiveService) -> None:
    for path, body in (
        ("/nothing", None),
        ("/recommend/ann?n=x", None),
        ("/score", {"pairs": "x"}),
        ("/replay", {"answer_id": "aXYZ"}),
        ("/static/../security.py", None),
        ("/static/%2e%2e%2fsecurity.py", None),
    ):
        answer = service.ask(path, body, token="read-secret")
        assert answer.status in (404, 422) and list(answer.json) == ["error"], path
        assert "Traceback" not in answer.text and "/site-packages/" not in answer.text and "import " not in answer.text


def test_a_hostile_id_is_escaped_in_the_log_and_in_metrics(service: LiveService) -> None:
    service.ask("/recommend/%0A%22forged%22%0A%1B%5B31m", token="read-secret")
    service.ask(f"/history?node={SCRIPT}", token="read-secret")
    lines = service.log.read_text().splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert sum("forged" in line for line in lines) == 1
    metrics = service.ask("/metrics", token="read-secret").text
    assert "forged" not in metrics and "<script>" not in metrics


def test_answers_are_json_that_a_browser_does_not_read_as_a_page(service: LiveService) -> None:
    answer = service.ask("/recommend?source=%3Cscript%3E", token="read-secret")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "server" not in answer.headers


def test_text_that_is_no_unicode_is_refused(service: LiveService) -> None:
    for event in ({"src": "\ud800"}, {"dst": "\udfff"}, {"time": "\ud800"}):
        assert service.ask("/events", {"events": [EVENT | event]}, token="write-secret").status == 422
    assert service.ask("/events", {"events": [EVENT], "key": "\ud800"}, token="write-secret").status == 422
    question = {"source": "ann", "at": "\ud800"}
    assert service.ask("/recommend", question, token="read-secret").status == 422


def test_fuzzed_requests_never_fail_inside(service: LiveService) -> None:
    """The script sends as many as one likes; these are the same ones each time."""
    environment = os.environ | {f"CORDGT_{kind.upper()}_TOKEN": value for kind, value in TOKENS.items()}
    command = [sys.executable, str(FUZZER), "--url", service.url, "--count", "400"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    statuses = ast.literal_eval(result.stdout[result.stdout.index("{") : result.stdout.index("}") + 1])
    assert statuses[200] > 50 and statuses[422] > 50, "neither alone is a test"
    assert service.ask("/health/ready").status == 200


def test_other_machines_need_tokens(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORDGT_READ_TOKEN", "CORDGT_WRITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    fails("serve", run, "--host", "0.0.0.0", containing=["CORDGT_READ_TOKEN", "--insecure"])
    monkeypatch.setenv("CORDGT_READ_TOKEN", "r")
    fails("serve", run, "--host", "0.0.0.0", containing="$CORDGT_WRITE_TOKEN is not set")
    monkeypatch.setenv("CORDGT_WRITE_TOKEN", "")
    fails("serve", run, containing="CORDGT_WRITE_TOKEN is empty")


# --- deployment files ---


@pytest.fixture(scope="module")
def proxy(service: LiveService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    """nginx with the example of deploy/, in front of the service: ports of HTTP and HTTPS, and the certificate."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None or shutil.which("openssl") is None:
        pytest.skip("no nginx or no openssl found; Debian: apt-get install nginx-light openssl")
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    request = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*request.split(), *files], check=True, capture_output=True)
    http, https = (_free_port() for _ in range(2))
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("127.0.0.1:8000", urlsplit(service.url).netloc),
        ("listen 80;", f"listen 127.0.0.1:{http};"),
        ("listen 443 ssl", f"listen 127.0.0.1:{https} ssl"),
        ("predict.example.org;", "localhost;"),
        ("/etc/letsencrypt/live/predict.example.org/fullchain.pem", str(folder / "cert.pem")),
        ("/etc/letsencrypt/live/predict.example.org/privkey.pem", str(folder / "key.pem")),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (folder / "cordgt.conf").write_text(text)
    paths = "".join(
        f"{name}_temp_path {folder / name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder / 'pid'}; error_log {folder / 'error.log'};\n"
        f"events {{}}\nhttp {{ access_log off; {paths}include {folder / 'cordgt.conf'}; }}\n"
    )
    command = [nginx, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(https)
        yield http, https, folder / "cert.pem"
    finally:
        started.terminate()
        started.wait(20)


def test_proxy_example_gives_tls(service: LiveService, proxy: tuple[int, int, Path]) -> None:
    http, https, certificate = proxy
    trust = ssl.create_default_context(cafile=str(certificate))

    def ask(path: str, body: object = None, token: str = "read-secret") -> tuple[int, str, dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"https://localhost:{https}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, context=trust, timeout=60) as answer:
                return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.headers.items()}
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), {}

    status, text, headers = ask("/recommend/ann?n=2")
    assert status == 200 and len(json.loads(text)["partners"]) == 2
    assert "max-age" in headers["strict-transport-security"] and "content-security-policy" in headers
    assert "<h1>" in ask("/")[1]
    assert ask("/events", {"events": [EVENT | {"time": 30_000}]}, "write-secret")[0] == 200
    assert ask("/events", {"events": [EVENT]}, "wrong")[0] == 401
    assert ask("/events", {"events": ["x" * 9_000_000]}, "write-secret")[0] == 413
    assert ask("/metrics")[0] == 200
    with socket.create_connection(("127.0.0.1", http), 20) as connection:
        connection.sendall(b"GET /status?a=1 HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = connection.recv(4096)
    assert b" 308 " in answer and b"https://localhost/status?a=1" in answer


def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze found")
    unit = tmp_path / "cordgt.service"
    text = (DEPLOY / "cordgt.service").read_text()
    assert "/opt/cordgt/bin/cordgt serve" in text
    unit.write_text(text.replace("/opt/cordgt/bin/cordgt", shutil.which("true") or "/bin/true"))  # it must exist
    checked = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    rated = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", unit], capture_output=True, text=True
    )
    assert rated.returncode == 0, rated.stdout[-300:]  # exposure of at most 2.0 of 10


def test_container_runs_without_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert "USER 10001" in lines and lines.index("USER 10001") < len(lines) - 2
    assert not [line for line in lines if "TOKEN=" in line]  # no secret in an image


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nginx does not answer"
            time.sleep(0.05)
