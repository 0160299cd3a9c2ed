"""Safety rules for HTTP: a test per rule. The application behind them is a few lines of ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cordgt.errors import SettingError
from cordgt.serving.security import (
    SECURITY_HEADERS,
    App,
    Limits,
    RefusedError,
    SecurityMiddleware,
    Tokens,
    check_bind,
    is_local,
)

BOTH = Tokens(read="reader", write="writer")
JSON_TYPE = {"content-type": "application/json"}


@dataclass
class Answer:
    """What a client gets."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    n_read: int = 0  # parts of the request body that the server took

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps({"length": length}).encode()})


def ask(
    method: str,
    path: str,
    *,
    token: str | None = None,
    headers: dict[str, str] | None = None,
    body: Iterable[bytes] = (b"",),
    app: App = echo,
    **rules: Any,
) -> Answer:
    """Send one request through the rules."""
    sent = {"host": "localhost:8000"} | (headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
    raw = [(k.encode(), v.encode("latin-1")) for k, v in sent.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    answer, parts = Answer(), iter(body)

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        answer.n_read += 1
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert answer.status == 0, "two answers"
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    asyncio.run(SecurityMiddleware(app, **rules)(scope, receive, send))  # type: ignore[arg-type]
    return answer


# --- tokens ---


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/recommend/7", None, 401),
        ("GET", "/recommend/7", "wrong", 401),
        ("GET", "/recommend/7", "writer", 403),
        ("GET", "/recommend/7", "reader", 200),
        ("GET", "/metrics", None, 401),
        ("GET", "/status", None, 401),
        ("GET", "/docs/", None, 401),  # only the exact paths are open
        ("GET", "/health", None, 401),
        ("POST", "/events", None, 401),
        ("POST", "/events", "reader", 403),
        ("POST", "/events", "writer", 200),
        ("POST", "/score", None, 401),
        ("POST", "/score", "reader", 200),
        ("POST", "/replay", "reader", 200),
        ("POST", "/model", "reader", 403),
        ("POST", "/something/new", "reader", 403),  # what is not known to be a question is a write
        ("DELETE", "/recommend/7", "reader", 403),
        ("POST", "/", None, 401),  # an open path is open for reading only
        ("GET", "/", None, 200),
        ("GET", "/docs", None, 200),
        ("GET", "/static/page.js", None, 200),
        ("GET", "/health/live", None, 200),
        ("HEAD", "/health/ready", None, 200),
    ],
)
def test_a_request_needs_its_token(method: str, path: str, token: str | None, status: int) -> None:
    assert ask(method, path, token=token, tokens=BOTH).status == status


def test_a_refused_request_says_which_token_it_needs() -> None:
    answer = ask("POST", "/events", tokens=BOTH)
    assert "write token" in answer.error and answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("value", ["reader", "Basic reader", "Bearer", "Bearer ", "Bearer reader,Bearer x", "Bearer é"])
def test_other_authorization_is_refused(value: str) -> None:
    assert ask("GET", "/status", headers={"authorization": value}, tokens=BOTH).status == 401


def test_a_refused_request_never_reaches_the_application() -> None:
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    answer = ask("POST", "/events", app=app, tokens=BOTH, body=[b"x" * 100])
    assert answer.status == 401 and reached == [] and answer.n_read == 0


def test_tokens_come_from_the_environment() -> None:
    assert Tokens.from_environment({"CORDGT_READ_TOKEN": "a", "CORDGT_WRITE_TOKEN": "b"}) == Tokens("a", "b")
    assert Tokens.from_environment({}) == Tokens(None, None)
    for value in ("", "two words", "line\nbreak", "é"):
        with pytest.raises(SettingError, match="CORDGT_WRITE_TOKEN"):
            Tokens.from_environment({"CORDGT_WRITE_TOKEN": value})


def test_tokens_are_not_printed() -> None:
    assert "reader" not in repr(BOTH) and "writer" not in str(BOTH)


# --- address ---


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
def test_local_addresses_need_no_token(host: str) -> None:
    assert is_local(host)
    check_bind(host, Tokens())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_addresses_need_both_tokens(host: str) -> None:
    for tokens in (Tokens(), Tokens(read="r"), Tokens(write="w")):
        with pytest.raises(SettingError, match="--insecure"):
            check_bind(host, tokens)
    check_bind(host, BOTH)
    check_bind(host, Tokens(), insecure=True)


def test_without_tokens_other_hosts_are_refused() -> None:
    """A name that an attacker points at 127.0.0.1 (DNS rebinding) still stands in the Host header."""
    evil = {"host": "evil.example"}
    assert ask("GET", "/status", headers=evil).status == 403
    assert ask("GET", "/status", headers=evil, insecure=True).status == 200
    assert ask("GET", "/status", headers=evil, tokens=BOTH, token="reader").status == 200
    assert ask("GET", "/health/live", headers=evil).status == 200
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
        assert ask("GET", "/status", headers={"host": host}).status == 200
    assert ask("GET", "/status", headers={"host": "localhost.evil.example"}).status == 403


def test_without_tokens_pages_of_other_sites_cannot_write() -> None:
    for origin in ("https://evil.example", "null", "http://localhost:9999"):
        assert ask("POST", "/events", headers=JSON_TYPE | {"origin": origin}).status == 403
    assert ask("POST", "/events", headers=JSON_TYPE | {"origin": "http://localhost:8000"}).status == 200


# --- limits ---


def test_a_long_body_is_refused_by_its_length() -> None:
    answer = ask("POST", "/events", headers=JSON_TYPE | {"content-length": str(10**9)}, limits=Limits(body_bytes=1000))
    assert answer.status == 413 and answer.n_read == 0 and "1,000 bytes" in answer.error
    assert answer.headers["connection"] == "close"


def test_a_long_body_without_length_is_cut_off_while_it_arrives() -> None:
    gigabyte = (b"x" * 100 for _ in range(10**7))
    answer = ask("POST", "/events", headers=JSON_TYPE, body=gigabyte, limits=Limits(body_bytes=1000))
    assert answer.status == 413 and answer.n_read == 11


def test_a_body_of_the_allowed_size_passes() -> None:
    answer = ask("POST", "/events", headers=JSON_TYPE, body=[b"x" * 500] * 2, limits=Limits(body_bytes=1000))
    assert json.loads(answer.body) == {"length": 1000}


@pytest.mark.parametrize("length", ["-1", "1e3", "ten", "9" * 30])
def test_a_strange_length_is_refused(length: str) -> None:
    assert ask("POST", "/events", headers=JSON_TYPE | {"content-length": length}).status in (400, 413)


def test_a_body_that_is_not_json_is_refused() -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert ask("POST", "/events", headers={"content-type": kind}).status == 415
    assert ask("POST", "/events", headers={"content-type": "application/json; charset=utf-8"}).status == 200


def test_numbers_of_events_and_candidates_are_limited() -> None:
    limits = Limits(events=2, candidates=3)
    limits.check_events(2)
    limits.check_candidates(3)
    for check, n in ((limits.check_events, 3), (limits.check_candidates, 4)):
        with pytest.raises(RefusedError, match="at most") as caught:
            check(n)
        assert caught.value.status == 413


def test_a_slow_answer_is_given_up() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await send({"type": "http.response.start", "status": 200, "headers": []})  # too late: it is dropped
            raise

    answer = ask("GET", "/status", app=app, limits=Limits(seconds=0.05))
    assert answer.status == 503 and "0.05 s" in answer.error and answer.headers["retry-after"] == "1"


def test_a_slow_answer_that_has_begun_is_cut_off() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    answer = ask("GET", "/status", app=app, limits=Limits(seconds=0.05))
    assert (answer.status, answer.body) == (200, b"")


# --- answers ---


def test_every_answer_has_security_headers() -> None:
    for answer in (ask("GET", "/status"), ask("GET", "/status", tokens=BOTH), ask("GET", "/")):
        assert {k.decode(): v.decode() for k, v in SECURITY_HEADERS}.items() <= answer.headers.items()
    policy = ask("GET", "/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_an_answer_may_choose_its_own_caching() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Cache-Control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    headers = ask("GET", "/", app=app).headers
    assert headers["Cache-Control"] == "no-cache" and "cache-control" not in headers


def test_a_failure_shows_no_internals(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("secret path /home/someone")

    with caplog.at_level(logging.ERROR, "cordgt.serving"):
        answer = ask("GET", "/recommend/a\nforged log line\x1b[31m", app=app)
    assert answer.status == 500 and "secret" not in answer.body.decode() and "Traceback" not in answer.body.decode()
    telemetry = pytest.importorskip("cordgt.serving.telemetry", reason="needs cordgt[serve]", exc_type=ImportError)
    line = telemetry.JsonFormatter().format(caplog.records[0])
    assert line.isascii() and line.isprintable() and json.loads(line)["path"] == "/recommend/a\nforged log line\x1b[31m"


def test_errors_are_ascii_json() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RefusedError(404, "no node <script>\u2028\x1b[31m\ud800")

    answer = ask("GET", "/status", app=app)
    assert answer.body.isascii() and b"\x1b" not in answer.body and answer.headers["content-type"] == "application/json"
    assert answer.error == "no node <script>\u2028\x1b[31m\ud800"


def test_head_has_no_body() -> None:
    assert ask("HEAD", "/status", tokens=BOTH).body == b""


def test_web_sockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    asyncio.run(SecurityMiddleware(echo)({"type": "websocket", "path": "/", "headers": []}, receive, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
