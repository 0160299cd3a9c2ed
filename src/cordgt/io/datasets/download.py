"""Download files over HTTP with pooch, and resume downloads that were cut off.

pooch skips a file that is already there, verifies checksums, and gives a file its name only when it is complete. This
module adds what pooch lacks: resuming, retries, a deadline, a check of the free disk space and a progress callback.
A partial file is ``NAME.part``. ``NAME.part.json`` holds the server's validator (ETag or Last-Modified): the download
resumes only if the server still has the same version.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import pooch
import requests
from urllib3.exceptions import HTTPError as ReadError

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.files import write_text

MAX_ATTEMPTS = 5
RETRY_DELAY = 1.0  # seconds before the second attempt; doubles with each further one
MAX_RETRY_DELAY = 60.0
TIMEOUT = 30.0  # seconds without a byte
DEADLINE = 6 * 3600.0  # seconds for all files of a dataset, all attempts together
LIST_DEADLINE = 300.0  # seconds for the publisher's list of files, all attempts together
CHUNK_BYTES = 1 << 18
MAX_JSON_BYTES = 16 << 20
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)

T = TypeVar("T")


class DownloadError(DataError):
    """A server cannot be reached, closes the connection on every attempt, or gives an unexpected answer."""


def download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    size: int | None = None,
    callbacks: Callback = NO_CALLBACK,
    deadline: float | None = None,
) -> None:
    """Download ``url`` to ``target``. Do nothing if the file is there and matches ``checksum``.

    Args:
        checksum: ``md5:…`` or ``sha256:…``; None if the publisher gives none.
        size: bytes of the file; None if the publisher does not say.
        deadline: of ``time.monotonic()``; None is `DEADLINE` seconds from now.

    DownloadError if the server fails, DataError if the disk is full: the next call resumes the partial file.
    DataError if the file does not match ``checksum`` or ``size``: nothing of it is kept.
    """
    part = _PartialFile(url, target)
    end = time.monotonic() + DEADLINE if deadline is None else deadline

    def downloader(url: str, output: str, _: Any) -> None:
        _with_retries(url, lambda: _receive(part, size, callbacks, end), end)
        part.path.replace(output)
        part.discard()

    pooch.get_logger().setLevel("WARNING")  # the default announces every file
    try:
        pooch.retrieve(url, checksum, target.name, target.parent, downloader=downloader)
    except DownloadError as error:
        hint = f" {part.size:,} bytes are kept: run the same command again to resume." if part.size else ""
        raise DownloadError(f"{error}{hint}") from None
    except ValueError as error:  # the checksum differs, and pooch has deleted the file
        raise DataError(f"{url} is not the published file. {error}") from None
    except OSError as error:
        raise DataError(f"{error.filename or part.path} cannot be written: {error.strerror or error}.") from None


def read_json(url: str) -> Any:
    """Fetch a small JSON document.

    DownloadError if the server fails or is too slow, or if the answer is not JSON, too long or nested too deeply.
    """
    deadline = time.monotonic() + LIST_DEADLINE

    def attempt() -> Any:
        with _get(url, deadline) as response:
            response.raise_for_status()
            data = b""
            for chunk in _iter_chunks(url, response, deadline):
                data += chunk
                if len(data) > MAX_JSON_BYTES:
                    raise DownloadError(
                        f"{url} does not answer as it used to: it sends more than {MAX_JSON_BYTES:,} bytes."
                    )
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                raise DownloadError(f"{url} does not answer as it used to: the answer is not JSON.") from None

    return _with_retries(url, attempt, deadline)


def _with_retries(url: str, attempt: Callable[[], T], deadline: float) -> T:
    """Repeat ``attempt`` while the network fails or the server is busy. DownloadError after the last attempt.

    Delays double, and are at least what the server asks for (Retry-After), up to `MAX_RETRY_DELAY`.
    """
    delay = RETRY_DELAY
    for number in range(1, MAX_ATTEMPTS + 1):
        try:
            return attempt()
        except requests.HTTPError as error:
            response = error.response
            assert response is not None  # raise_for_status sets it
            status, retry_after = response.status_code, response.headers.get("Retry-After", "")
            if status not in TRANSIENT_STATUS or number == MAX_ATTEMPTS:
                advice = "It may have moved." if status in (403, 404, 410) else "Try again later."
                raise DownloadError(f"{url} cannot be fetched: the server answers {status}. {advice}") from None
            if retry_after.isdecimal():
                delay = max(delay, min(float(retry_after), MAX_RETRY_DELAY))
        except (requests.RequestException, ReadError) as error:
            if number == MAX_ATTEMPTS:
                raise DownloadError(
                    f"{urlsplit(url).hostname} cannot be reached or closes the connection ({number} attempts; "
                    f"{_reason(error)}). Check the network and the proxy settings (https_proxy)."
                ) from None
        if time.monotonic() + delay > deadline:
            raise _too_slow(url)
        time.sleep(delay)
        delay = min(2 * delay, MAX_RETRY_DELAY)
    raise AssertionError("the last attempt returns or raises")


def _reason(error: Exception) -> str:
    """Return the innermost message of a network error, without urllib3's prefix of connection objects."""
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause)).rpartition(": ")[2]


class _PartialFile:
    """``NAME.part``, and ``NAME.part.json`` with what the server said about the file."""

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.path = target.with_name(f"{target.name}.part")
        self.info_path = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read_info(self) -> dict[str, Any]:
        """Return ``url``, ``validator`` and ``size``; empty if they are missing or belong to another URL."""
        try:
            info = json.loads(self.info_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return info if isinstance(info, dict) and info.get("url") == self.url else {}

    def start(self, headers: Any, size: int | None) -> None:
        """Start over with the version that the server has now. A weak ETag cannot validate a resumed download."""
        self.discard()
        etag = headers.get("ETag", "W/")
        validator = headers.get("Last-Modified") if etag.startswith("W/") else etag
        write_text(self.info_path, json.dumps({"url": self.url, "validator": validator, "size": size}))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.info_path.unlink(missing_ok=True)


def _receive(part: _PartialFile, expected_size: int | None, callbacks: Callback, deadline: float) -> None:
    """Request the missing bytes and append them. requests.ConnectionError if the connection ends early."""
    info, have, headers = part.read_info(), part.size, {}
    if have and info.get("validator"):
        if have == info.get("size"):
            return
        headers = {"Range": f"bytes={have}-", "If-Range": str(info["validator"])}
    with _get(part.url, deadline, headers) as response:
        is_partial = response.status_code == 206
        starts_here = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status_code == 416 or (is_partial and not starts_here):
            part.discard()
            raise requests.ConnectionError("the server does not have the requested range")
        response.raise_for_status()
        have = have if is_partial else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        if None not in (total, expected_size) and total != expected_size:
            part.discard()
            raise DataError(f"{part.url} has {total:,} bytes; {expected_size:,} were expected. Nothing was kept.")
        if not is_partial:
            part.start(response.headers, total)
        free = shutil.disk_usage(part.path.parent).free
        if total is not None and total - have > free:
            raise DataError(f"{part.path.parent} has {free:,} bytes free; the download needs {total - have:,} more.")
        with open(part.path, "ab") as file:
            callbacks.on_stage_start(part.path.name, total)
            callbacks.on_step(have)
            for chunk in _iter_chunks(part.url, response, deadline):
                file.write(chunk)
                file.flush()  # reports a full disk now, before the bytes count as received
                have += len(chunk)
                callbacks.on_step(len(chunk))
    if total is not None and have < total:
        raise requests.ConnectionError(f"{have:,} of {total:,} bytes came")


def _iter_chunks(url: str, response: requests.Response, deadline: float) -> Iterator[bytes]:
    """Yield the body as it arrives. DownloadError after the deadline, however slowly the server sends."""
    while chunk := response.raw.read1(CHUNK_BYTES):  # read() would wait for all of CHUNK_BYTES
        yield chunk
        if time.monotonic() > deadline:
            raise _too_slow(url)


def _too_slow(url: str) -> DownloadError:
    return DownloadError(f"{url} is too slow: it took longer than the limit. Try again later.")


class _Session(requests.Session):
    """Follows redirects only to http and https, and from https only to https."""

    def get_redirect_target(self, resp: Any) -> Any:
        target = super().get_redirect_target(resp)
        if target is not None:
            old, new = urlsplit(resp.url).scheme, urlsplit(urljoin(resp.url, target)).scheme
            if new not in ("http", "https"):
                raise DownloadError(f"{resp.url} redirects to {target}, which is not an http or https URL.")
            if (old, new) == ("https", "http"):
                raise DownloadError(f"{resp.url} redirects to {target}, which is not encrypted. Nothing was fetched.")
        return target


def _get(url: str, deadline: float, headers: dict[str, str] | None = None) -> requests.Response:
    """Open a response without reading its body. DataError if a URL is not http or https, or after the deadline.

    `TIMEOUT` limits the wait for each byte. A thread limits the wait for all headers and redirects together.
    """
    from cordgt import __version__

    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is not an http or https URL.")
    # identity: sizes and ranges count the bytes of the file itself
    own = {"User-Agent": f"cordgt/{__version__}", "Accept-Encoding": "identity"}
    result: list[requests.Response] = []
    errors: list[BaseException] = []

    def request() -> None:
        try:
            result.append(_Session().get(url, headers=own | (headers or {}), stream=True, timeout=TIMEOUT))
        except BaseException as error:  # raised below, in the calling thread
            errors.append(error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    if not result:
        raise _too_slow(url)
    return result[0]
