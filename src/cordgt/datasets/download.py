"""Downloads that can be cut off: what was received is kept aside and continued, and nothing is trusted half.

A file grows as ``NAME.part`` beside what is known of it (``NAME.part.json``). It is continued only where the server
says that it is still the same file, becomes ``NAME`` only when it is whole and its checksum is right, and is deleted
where that is wrong. A whole file is taken again only while its checksum is that of ``NAME.whole.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cordgt.errors import DataError
from cordgt.files import write_text

TRIES = 5
WAIT = 1.0  # seconds before the second try; doubled before each further one
LONGEST_WAIT = 60.0
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18
MOST_JSON = 16 << 20  # bytes of an answer that is not a file
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that may be others in a while

T = TypeVar("T")
Progress = Callable[[int, int | None], None]  # bytes so far, and in all where known


class Unreachable(DataError):
    """No server answered, or it broke off every time."""


class Refused(DataError):
    """A server answered, and not with what was asked for."""


@dataclass(frozen=True)
class Expected:
    """What is known of a file before it comes: None where nothing is."""

    size: int | None = None
    md5: str | None = None
    sha256: str | None = None

    def sums(self) -> dict[str, str]:
        """The checksums that are known, by name, as `checksums` has them."""
        known = {"sha256": self.sha256, "md5": self.md5}
        return {name: value.lower() for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Fetched:
    """A file that is whole."""

    path: Path
    url: str
    size: int
    sha256: str


def download(url: str, target: Path, expected: Expected | None = None, progress: Progress | None = None) -> Fetched:
    """Fetch ``url`` into ``target``, going on from what an earlier call left.

    Unreachable where the network fails every time, Refused where the server answers with an error, DataError where the
    disk is full: what has come so far is kept for the next call. DataError where the file is not what was expected:
    nothing of it is kept.
    """
    part, expected = _Part(target), expected or Expected()
    kept = _kept(url, part, expected)
    if kept is not None:
        return kept

    def attempt() -> Fetched:
        _receive(url, part, expected, progress or _silent)
        return _accept(url, part, expected)

    return _persistently(url, attempt, lambda: part.size)


def read_json(url: str) -> Any:
    """A small JSON answer. Errors as in `download`."""

    def attempt() -> Any:
        with urllib.request.urlopen(_request(url), timeout=TIMEOUT) as answer:
            try:
                return json.loads(answer.read(MOST_JSON))
            except ValueError:
                raise Refused(f"{url} does not answer as it used to: no JSON came back.") from None

    return _persistently(url, attempt, lambda: 0)


def _persistently(url: str, attempt: Callable[[], T], received: Callable[[], int]) -> T:
    """What an attempt gives, which is made again while the network fails or the server is busy.

    The waits between grow, and are as long as the server asks for, up to `LONGEST_WAIT`. ``received``: how many bytes
    are kept where all attempts fail. Errors as in `download`.
    """
    wait = WAIT
    for number in range(1, TRIES + 1):
        try:
            return attempt()
        except urllib.error.HTTPError as error:
            if error.code not in PASSING or number == TRIES:
                raise Refused(_refused(url, error.code)) from None
            wait = max(wait, min(_asked_to_wait(error), LONGEST_WAIT))
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, CutShort) as error:
            if number == TRIES:
                raise Unreachable(_unreachable(url, error, received())) from None
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)
    raise AssertionError("the last try returns or raises")


class CutShort(Exception):
    """The connection ended before the file did."""


@dataclass(frozen=True)
class _Part:
    """A file on its way."""

    target: Path

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def about(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    @property
    def whole(self) -> Path:
        return self.target.with_name(f"{self.target.name}.whole.json")

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def known(self) -> dict[str, Any]:
        """What the server said of the file when it began; empty where that is not known, so that it begins anew."""
        try:
            found = json.loads(self.about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def begin(self, about: Mapping[str, Any]) -> None:
        self.path.unlink(missing_ok=True)
        write_text(self.about, json.dumps(about))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)


def _receive(url: str, part: _Part, expected: Expected, progress: Progress) -> None:
    """Everything that is still missing. CutShort where the connection ends before."""
    known, headers = part.known(), {}
    have = part.size
    if have and known.get("url") == url and known.get("mark"):
        if have == known.get("size"):
            return
        headers = {"Range": f"bytes={have}-", "If-Range": str(known["mark"])}
    try:
        answer = urllib.request.urlopen(_request(url, headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.discard()  # there is more of it here than there
        raise CutShort("the server has fewer bytes than were received") from None
    with answer:
        goes_on = answer.status == 206 and _starts_at(answer.headers.get("Content-Range"), have)
        if answer.status == 206 and not goes_on:  # a part of it, and not the one that is missing
            part.discard()
            raise CutShort("the server sent another part of the file than it was asked for")
        if not goes_on:
            have = 0
        total = _total(answer, have)
        if not goes_on:
            part.begin({"url": url, "mark": _mark(answer.headers), "size": total})
        _check_size(url, total, expected, part)
        _check_room(part.path, total, have)
        _write_on(answer, part, have, total, progress)


def _write_on(answer: Any, part: _Part, have: int, total: int | None, progress: Progress) -> None:
    with _opened(part.path, "ab" if have else "wb") as file:
        progress(have, total)
        while chunk := _read(answer):
            try:
                file.write(chunk)
                file.flush()  # a full disk is told here, and what counts as received is there
            except OSError as error:
                raise DataError(f"{part.path} cannot be written: {error.strerror or error}.") from None
            have += len(chunk)
            if total is not None and have > total:
                break
            progress(have, total)
    if total is not None and have > total:
        part.discard()
        raise DataError(f"{part.target.name}: more bytes came than were announced ({total:,}). Nothing was kept.")
    if total is not None and have < total:
        raise CutShort(f"{have:,} of {total:,} bytes came")


def _opened(path: Path, how: str) -> Any:
    try:
        return open(path, how)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _read(answer: Any) -> bytes:
    """The next bytes; CutShort where the network fails."""
    try:
        return bytes(answer.read(CHUNK))
    except (OSError, HTTPException) as error:
        raise CutShort(str(error) or type(error).__name__) from None


def _accept(url: str, part: _Part, expected: Expected) -> Fetched:
    """The whole file under its own name, if it is what was expected; else nothing of it stays."""
    sums = checksums(part.path)
    for name, wanted in expected.sums().items():
        if sums[name] != wanted:
            part.discard()
            raise DataError(
                f"{url} is not what was published: its {name} is {sums[name]}, {wanted} was expected. Nothing was "
                "kept; fetch it again. If that does not help, the source has changed, or something on the way has."
            )
    size = part.size
    if expected.size is not None and size != expected.size:
        part.discard()
        raise DataError(f"{url} has {size:,} bytes; {expected.size:,} were expected. Nothing was kept.")
    about = json.dumps({"url": url, "sha256": sums["sha256"]})
    write_text(part.whole, about)
    os.replace(part.path, part.target)
    part.discard()
    return Fetched(part.target, url, size, sums["sha256"])


def _kept(url: str, part: _Part, expected: Expected) -> Fetched | None:
    """The file as an earlier call received it, where it is still that; else it goes."""
    try:
        about = json.loads(part.whole.read_text(encoding="utf-8"))
        sums = checksums(part.target)
        if about == {"url": url, "sha256": sums["sha256"]} and expected.sums().items() <= sums.items():
            return Fetched(part.target, url, part.target.stat().st_size, sums["sha256"])
    except (OSError, ValueError):
        pass
    part.target.unlink(missing_ok=True)
    part.whole.unlink(missing_ok=True)
    return None


def checksums(path: Path) -> dict[str, str]:
    """MD5 and SHA-256 of a file in hexadecimal. MD5 because publishers give it: against accidents, not attacks."""
    digests = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            for digest in digests.values():
                digest.update(chunk)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _request(url: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
    from cordgt import __version__

    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is no address on the web.")
    own = {"User-Agent": f"cordgt/{__version__}", "Accept-Encoding": "identity"}
    return urllib.request.Request(url, headers={**own, **(headers or {})})


def _mark(headers: Any) -> str | None:
    """What tells this version of the file from another one; None where the server gives nothing strong."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _starts_at(content_range: str | None, have: int) -> bool:
    return content_range is not None and content_range.replace("bytes ", "").startswith(f"{have}-")


def _total(answer: Any, have: int) -> int | None:
    length = answer.headers.get("Content-Length")
    return have + int(length) if length is not None and length.isdecimal() else None


def _check_size(url: str, total: int | None, expected: Expected, part: _Part) -> None:
    if None not in (total, expected.size) and total != expected.size:
        part.discard()
        raise DataError(f"{url} has {total:,} bytes; {expected.size:,} were expected. Nothing was kept.")


def _check_room(path: Path, total: int | None, have: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if total is not None and total - have > free:
        raise DataError(f"{path.parent} has room for {free:,} bytes, and {total - have:,} are still to come.")


def _asked_to_wait(error: urllib.error.HTTPError) -> float:
    asked = error.headers.get("Retry-After", "") if error.headers else ""
    return float(asked) if asked.isdecimal() else 0.0


def _refused(url: str, code: int) -> str:
    gone = " It may have moved." if code in (403, 404, 410) else " Try again later."
    return f"{url} cannot be fetched: the server answers {code}.{gone}"


def _unreachable(url: str, error: Exception, have: int) -> str:
    why = getattr(error, "reason", None) or error
    told = f"{urlsplit(url).hostname} cannot be reached, or breaks off, after {TRIES} tries ({why})."
    kept = f" {have:,} bytes are kept, and the same command goes on from there." if have else ""
    return f"{told} Is there a network, or a proxy to set (https_proxy)?{kept}"


def _silent(have: int, total: int | None) -> None:
    """Tells nobody."""
