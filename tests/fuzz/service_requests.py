"""Send hostile requests to a running service and report every 500, hang, missing answer and leaked traceback.

    cordgt serve RUN --port 8000 &
    python tests/fuzz/service_requests.py --url http://127.0.0.1:8000 --count 10000 --seed 0

Every request is made from (seed, number), so that it can be sent again: ``--only 1234``. The tokens come from
$CORDGT_READ_TOKEN and $CORDGT_WRITE_TOKEN. Use a service whose events may be lost: the requests add events.
Exit code 1 if a bug was found.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fuzz.mutations import EXTREMES, mutate_bytes

TIMEOUT = float(os.environ.get("FUZZ_TIMEOUT", "40"))  # seconds; longer than the service allows itself
HOSTILE = [
    "<script>alert(1)</script>", "'; DROP TABLE events; --", "../../etc/passwd", "%00", "\x00", "\r\nX-Evil: 1",
    "{{7*7}}", "${jndi:ldap://x}", "\ud800", "\udfff\ud800", "\u202e", "=cmd|'/c calc'!A0", "a" * 5000, "", " ", ".",
    "..", "/", "//", "?", "#", "💥" * 50, "NaN", "-0", "1e400", "\x1b[31m", "\x85", "7", "node",
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], {"": ""}, {"a": {"b": []}}, [0] * 2000,
]  # fmt: skip
QUESTIONS = ("recommend", "next", "history", "nodes", "active", "movers", "status", "quality", "model", "metrics")
PARAMETERS = ("n", "within", "new_only", "exclude", "candidates", "at", "search", "node", "side", "source", "window")
POSTS = ("/events", "/score", "/replay", "/model", "/model/rollback", "/nothing")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "FOO")
BODY_TYPES = (
    "application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data", "", "a/b/c", "\x80",
)  # fmt: skip
CONTENT_LENGTHS = (b"0", b"-1", b"10000000000000", b"1e3", b"7, 8", b"")


@dataclass(frozen=True)
class Outcome:
    """What came back for a request. ``problem`` is empty if that is fine."""

    status: int
    problem: str = ""


def make_request(seed: int, number: int, host: str, tokens: Mapping[str, str]) -> bytes:
    """Return the bytes of a request. Most are well-formed HTTP with hostile values; a few are not HTTP."""
    rng = Random(f"{seed}/{number}")
    is_post = rng.random() < 0.55
    target = _post_target(rng) if is_post else _question(rng)
    method = rng.choice(METHODS) if rng.random() < 0.05 else "POST" if is_post else "GET"
    body = _body(rng, target) if is_post or rng.random() < 0.05 else b""
    kind = "read" if not is_post or target.startswith(("/score", "/replay")) else "write"
    headers = {"Host": host, "Connection": "close"} | ({"Authorization": tokens[kind]} if tokens.get(kind) else {})
    lines = [f"{k}: {v}".encode("latin-1", "replace") for k, v in headers.items()]
    if body:
        lines.append(
            b"Content-Type: " + (rng.choice(BODY_TYPES) if rng.random() < 0.1 else "application/json").encode()
        )
    if rng.random() < 0.03:
        lines.append(b"Content-Length: " + rng.choice(CONTENT_LENGTHS))
    elif rng.random() < 0.05:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif body or is_post:
        lines.append(b"Content-Length: %d" % len(body))
    if rng.random() < 0.05:
        lines.append(
            rng.choice([b"X: " + b"y" * 70_000, b"Origin: http://evil", b"Authorization: Bearer \xff", b"bad"])
        )
    head = f"{method} {target} HTTP/1.1".encode("latin-1", "replace")
    raw = b"\r\n".join([head, *lines]) + b"\r\n\r\n" + body
    return mutate_bytes(rng, raw, [raw]) if rng.random() < 0.02 else raw


def send_request(address: tuple[str, int], raw: bytes) -> Outcome:
    """Send bytes and read the whole answer."""
    try:
        with socket.create_connection(address, TIMEOUT) as connection:
            answer = _exchange(connection, raw)
    except TimeoutError:
        return Outcome(0, "no answer in time")
    except OSError as error:
        return Outcome(0, f"no connection: {error}")
    status = int(answer[9:12]) if answer[:7] == b"HTTP/1." and answer[9:12].isdigit() else 0
    if not status:
        return Outcome(0, "no answer" if _is_complete(raw) else "")
    if status == 500:
        return Outcome(status, "internal error")
    if b"Traceback" in answer or b'File "/' in answer:
        return Outcome(status, "traceback in the answer")
    return Outcome(status)


def run(url: str, count: int, seed: int, tokens: Mapping[str, str]) -> tuple[Counter[int], list[tuple[int, Outcome]]]:
    """Send ``count`` requests. Returns the number of each status, and the number and outcome of each bug."""
    parts = urlsplit(url)
    address = parts.hostname or "127.0.0.1", parts.port or 80
    statuses: Counter[int] = Counter()
    bugs = []
    for number in range(count):
        outcome = send_request(address, make_request(seed, number, parts.netloc, tokens))
        statuses[outcome.status] += 1
        if outcome.problem:
            bugs.append((number, outcome))
    return statuses, bugs


def tokens_from(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Authorization header of reads and of writes."""
    values = {kind: environment.get(f"CORDGT_{kind.upper()}_TOKEN") for kind in ("read", "write")}
    return {kind: f"Bearer {value}" for kind, value in values.items() if value}


def _exchange(connection: socket.socket, raw: bytes) -> bytes:
    """Send a request and return the answer. An incomplete request is ended, so that nobody waits for its rest."""
    connection.settimeout(TIMEOUT)
    answer = b""
    try:
        connection.sendall(raw)
        if not _is_complete(raw):
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            answer += part
    except (ConnectionResetError, BrokenPipeError):
        pass  # the service has answered before it read everything
    return answer


def _is_complete(raw: bytes) -> bool:
    """Return whether a request is well-formed HTTP up to its end, as far as this matters here."""
    head, end, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    lengths = [value for name, value in headers if name == b"content-length"]
    is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
    has_all = body.endswith(b"0\r\n\r\n") if is_chunked else lengths == [b"%d" % len(body)] or not (lengths or body)
    is_plain = first.split(b" ")[0] in (b"GET", b"POST") and first.endswith(b" HTTP/1.1") and b"\r\nbad" not in head
    is_closed_after = (b"connection", b"close") in headers  # or the service waits for the next request
    return bool(end) and has_all and is_plain and is_closed_after


def _value(rng: Random) -> Any:
    """Return a value for a JSON body: usual, odd, or hostile."""
    choice = rng.random()
    if choice < 0.4:
        return rng.randrange(20)
    if choice < 0.6:
        return rng.choice(ODD)
    return rng.choice(HOSTILE) if choice < 0.85 else rng.choice(EXTREMES).decode("utf-8", "replace")


def _text(rng: Random) -> str:
    value = _value(rng)
    return value if isinstance(value, str) else str(value)[:300]


def _quoted(rng: Random) -> str:
    if rng.random() < 0.1:
        return quote(rng.choice(EXTREMES) + bytes(rng.randrange(256) for _ in range(3)), safe="")
    return quote(_text(rng).encode("utf-8", "surrogatepass"), safe="" if rng.random() < 0.8 else "/?&=#")


def _question(rng: Random) -> str:
    name = rng.choice(QUESTIONS)
    path = f"/{name}/{_quoted(rng)}" if name in ("recommend", "next", "history") and rng.random() < 0.7 else f"/{name}"
    if rng.random() < 0.05:
        path = "/" + rng.choice(["", "docs", "openapi.json", "health/live", "health/ready", f"static/{_quoted(rng)}"])
    wanted = rng.sample(PARAMETERS, rng.randrange(4))
    wanted += {"nodes": ["search"], "history": ["node"]}.get(name, [])
    return path + ("?" + "&".join(f"{p}={_quoted(rng)}" for p in wanted) if wanted else "")


def _post_target(rng: Random) -> str:
    return rng.choice(POSTS[:3] * 3 + POSTS) + (
        f"?{rng.choice(PARAMETERS)}={_quoted(rng)}" if rng.random() < 0.1 else ""
    )


def _body(rng: Random, target: str) -> bytes:
    """Return a JSON body that fits the endpoint, often with a wrong value, sometimes with broken bytes."""
    time = 10**10 + rng.randrange(1000) if rng.random() < 0.7 else _value(rng)
    event: dict[Any, Any] = {"src": _value(rng), "dst": _value(rng), "time": time}
    if rng.random() < 0.2:
        event[_text(rng)] = _value(rng)
    if rng.random() < 0.2:
        del event[rng.choice(list(event))]
    bodies: dict[str, Any] = {
        "/events": {"events": [event] * rng.choice([0, 1, 1, 2, 30]), "key": rng.choice([None, "k", _value(rng)])},
        "/score": {"pairs": [{"src": _value(rng), "dst": _value(rng)}], "src": [_value(rng)], "dst": [_value(rng)]},
        "/replay": {"answer_id": _forged_answer_id(rng) if rng.random() < 0.6 else _value(rng)},
        "/model": {"run": _text(rng), "path": _value(rng)},
    }
    body: Any = bodies.get(target.partition("?")[0], {"x": _value(rng)})
    if rng.random() < 0.15:
        body = _value(rng)
    elif rng.random() < 0.2:
        body[rng.choice([*body, "at", "n", _text(rng)])] = _value(rng)
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        raw = mutate_bytes(rng, raw, [raw])
    if rng.random() < 0.01:
        raw = rng.choice([b"[" * 100_000, b'{"a":' * 20_000, b"1" * 10_000, b'{"events":' + b" " * 200_000 + b"[]}"])
    return raw


def _forged_answer_id(rng: Random) -> str:
    """Return the id of an answer that nobody gave: the packed question has odd values, in one or more places."""
    question: dict[str, Any] = {"kind": rng.choice(["recommend", "score", "active", "next", _value(rng)]), "cut": 1}
    question |= {"model": "0" * 16, "source": "7"}
    names = ["cut", "model", "source", "n", "at", "new_only", "exclude", "candidates", "pairs", "within", "mark"]
    question |= {name: _value(rng) for name in rng.sample([*names, "role", "kind"], rng.randrange(4))}
    packed = zlib.compress(json.dumps(question).encode())
    return "a" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="print one request, send it and print its outcome")
    options = parser.parse_args()
    tokens, netloc = tokens_from(os.environ), urlsplit(options.url).netloc
    if options.only is not None:
        raw = make_request(options.seed, options.only, netloc, tokens)
        parts = urlsplit(options.url)
        print(raw[:2000], send_request((parts.hostname or "127.0.0.1", parts.port or 80), raw))
        return 0
    statuses, bugs = run(options.url, options.count, options.seed, tokens)
    print(f"{options.count:,} requests, statuses {dict(sorted(statuses.items()))}, {len(bugs)} bugs")
    for number, outcome in bugs[:20]:
        print(f"  --only {number}: {outcome.status} {outcome.problem}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main())
