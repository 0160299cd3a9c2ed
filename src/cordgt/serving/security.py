"""Safety rules for HTTP requests: tokens, limits, security headers, and errors without internals.

`SecurityMiddleware` is plain ASGI. It wraps the whole application and needs no other package.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from cordgt.errors import SettingError
from cordgt.serving.errors import ServiceError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

log = logging.getLogger("cordgt.serving")

READ_TOKEN, WRITE_TOKEN = "CORDGT_READ_TOKEN", "CORDGT_WRITE_TOKEN"
SAFE_METHODS = ("GET", "HEAD")
# Requests that answer a question although their method is POST. Any other POST needs the write token.
READING_POSTS = ("/recommend", "/score", "/replay")
# No token: health checks, and pages that hold no data. A browser cannot send a token with the page's own address.
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/favicon.ico", "/health/live", "/health/ready")
OPEN_FOLDER = "/static/"
SECURITY_HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)


class RefusedError(ServiceError):
    """A request that a safety rule refuses, with its HTTP status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """The most that one request may send or use."""

    body_bytes: int = 8 * 2**20
    events: int = 10_000  # of a POST /events
    candidates: int = 100_000  # of a question, and pairs of a POST /score
    seconds: float = 30.0  # from the first byte of the request to the end of the answer

    def check_events(self, n: int) -> None:
        """RefusedError (413) if a request sends too many events."""
        self._check(n, self.events, "events", "Send several requests.")

    def check_candidates(self, n: int) -> None:
        """RefusedError (413) if a question names too many candidates or pairs."""
        self._check(n, self.candidates, "candidates", "Ask several questions.")

    @staticmethod
    def _check(n: int, allowed: int, what: str, advice: str) -> None:
        if n > allowed:
            raise RefusedError(413, f"The request has {n:,} {what}; at most {allowed:,} are allowed. {advice}")


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens; None means that no token is needed."""

    read: str | None = None
    write: str | None = None

    def __repr__(self) -> str:
        """Show which tokens are set, never their values: logs print it."""
        return f"Tokens(read={'set' if self.read else None}, write={'set' if self.write else None})"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tokens:
        """Read $CORDGT_READ_TOKEN and $CORDGT_WRITE_TOKEN. SettingError if one is set but unusable."""
        values = {name: environment.get(name) for name in (READ_TOKEN, WRITE_TOKEN)}
        for name, value in values.items():
            if value is not None and (not value or not value.isascii() or not value.isprintable() or " " in value):
                problem = "has a character that a token cannot have" if value else "is empty"
                raise SettingError(f"${name} {problem}. Set it to a token, for example of `openssl rand -hex 32`.")
        return cls(values[READ_TOKEN], values[WRITE_TOKEN])

    def expected(self, is_write: bool) -> str | None:
        return self.write if is_write else self.read


def is_local(host: str) -> bool:
    """Return whether only programs on this machine can reach a server bound to ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_bind(host: str, tokens: Tokens, *, insecure: bool = False) -> None:
    """SettingError if the server would be open to other machines without both tokens."""
    missing = [f"${n}" for n, t in ((READ_TOKEN, tokens.read), (WRITE_TOKEN, tokens.write)) if t is None]
    if missing and not insecure and not is_local(host):
        raise SettingError(
            f"--host {host} opens the service to other machines, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Set both tokens, or use --host 127.0.0.1. "
            "--insecure allows it without tokens."
        )


def error_body(message: str) -> bytes:
    """Return the JSON of an error: ASCII only, so that it is safe in logs and terminals too."""
    return json.dumps({"error": message}).encode()


class SecurityMiddleware:
    """Checks every request before the application sees it, and every answer before the client sees it."""

    def __init__(
        self, app: App, *, tokens: Tokens | None = None, limits: Limits | None = None, insecure: bool = False
    ) -> None:
        self.app = app
        self.tokens = tokens or Tokens()
        self.limits = limits or Limits()
        self.insecure = insecure  # True: requests without a token may come from any host
        self.abandoned: set[asyncio.Future[None]] = set()  # requests that ran out of time and have not ended yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, Exchange(scope, receive, send, self.limits.body_bytes))
        else:  # there are no web sockets
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        try:
            self.check(scope)
        except RefusedError as error:
            fields = {"method": scope["method"], "path": scope["path"], "status": error.status}
            log.info("request refused", extra={"fields": fields})
            await exchange.refuse(error)
            return
        task = asyncio.ensure_future(self._run(scope, exchange))
        try:
            is_done = bool((await asyncio.wait({task}, timeout=self.limits.seconds))[0])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not is_done:
            # Not awaited: a thread cannot be interrupted, and the client should not wait for it.
            self.abandoned.add(task)
            task.add_done_callback(self.abandoned.discard)
            await exchange.refuse(_out_of_time(self.limits.seconds))
            task.cancel()

    async def _run(self, scope: Scope, exchange: Exchange) -> None:
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except RefusedError as error:
            await exchange.refuse(error)
        except Exception as error:
            if exchange.is_over:
                return  # the application was told that the client is gone
            fields = {"method": scope["method"], "path": scope["path"], "status": 500}
            log.error("request failed", exc_info=error, extra={"fields": fields})
            await exchange.refuse(RefusedError(500, "The service failed. Its log has the reason."))

    def check(self, scope: Scope) -> None:
        """RefusedError if the token, the origin, the host, the length or the type of a request is refused."""
        headers = _headers(scope)
        method, path = scope["method"], scope["path"]
        is_open = method in SAFE_METHODS and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
        if not is_open:
            self._check_access(headers, is_write=method not in SAFE_METHODS and path not in READING_POSTS)
        if method not in SAFE_METHODS:
            self._check_body(headers)

    def _check_access(self, headers: Mapping[str, str], *, is_write: bool) -> None:
        kind = "write" if is_write else "read"
        expected, other = self.tokens.expected(is_write), self.tokens.expected(not is_write)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if expected is not None:
            if given and _is_same(given, expected):
                return
            if given and other is not None and _is_same(given, other):
                raise RefusedError(403, f"This request needs the {kind} token, not the other one.")
            raise RefusedError(
                401,
                f"This request needs the {kind} token. Send it as 'Authorization: Bearer TOKEN'.",
                {"www-authenticate": f'Bearer realm="cordgt {kind}"'},
            )
        # Without a token, any page in a browser on this machine could ask. Its host or its origin gives it away.
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self.insecure and host and not is_local(_host_name(host)):
            raise RefusedError(
                403, f"Without ${READ_TOKEN} and ${WRITE_TOKEN}, the service answers on localhost only. Set both."
            )
        if origin is not None and urlsplit(origin).netloc != host:
            raise RefusedError(403, "A page of another site sent this request.")

    def _check_body(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(400, "Content-Length is not a number.")
        if len(length) > 18 or int(length) > self.limits.body_bytes:
            raise _too_large(self.limits.body_bytes)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise RefusedError(415, "The body must be JSON. Send 'Content-Type: application/json' (curl: --json).")


class Exchange:
    """One request and its answer: counts the body, adds headers, and can answer in the application's place."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, body_bytes: int) -> None:
        self.is_head = scope["method"] == "HEAD"
        self._receive, self._send = receive, send
        self.body_bytes, self.n_received = body_bytes, 0
        self.is_started = self.is_over = False

    async def receive(self) -> Message:
        """Return the next part of the request. A body that is too long is answered with 413 and ends here."""
        if self.is_over:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self.n_received += len(message.get("body", b""))
        if self.n_received > self.body_bytes:
            await self.refuse(_too_large(self.body_bytes))
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the application's answer, with the security headers."""
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            self.is_started = True
            message = {**message, "headers": _with_security_headers(message.get("headers", ()))}
        await self._send(message)

    async def refuse(self, error: RefusedError) -> None:
        """Answer with an error. An answer that has begun already is cut off instead."""
        if self.is_over:
            return
        self.is_over = True
        if self.is_started:
            return  # the server closes the connection, so the client sees that the answer is incomplete
        body = error_body(str(error))
        extra = [(k.encode(), v.encode()) for k, v in error.headers.items()]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *extra]
        # The rest of the body is not read, so the connection cannot be used again.
        headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": error.status, "headers": _with_security_headers(headers)}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": b"" if self.is_head else body})


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers with names in lower case. A repeated header is invalid where it matters: its values join."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _with_security_headers(headers: Iterable[Header]) -> list[Header]:
    """Add the security headers that an answer does not set itself."""
    headers = list(headers)
    names = {name.lower() for name, _ in headers}
    return headers + [header for header in SECURITY_HEADERS if header[0] not in names]


def _is_same(given: str, expected: str) -> bool:
    """Compare in constant time. Digests have one length, so the length of the token stays secret too."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, expected)]
    return hmac.compare_digest(*digests)


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _too_large(body_bytes: int) -> RefusedError:
    return RefusedError(413, f"The body is larger than {body_bytes:,} bytes. Send several smaller requests.")


def _out_of_time(seconds: float) -> RefusedError:
    return RefusedError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The answer took longer than {seconds:g} s. Ask for less, or try again later. "
        "Events that carry a key can be sent again safely.",
        {"retry-after": "1"},
    )
