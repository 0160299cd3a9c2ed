"""Fetch datasets from a local server that answers, closes connections, refuses and sends wrong bytes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import ssl
import stat
import subprocess
import tarfile
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.callbacks import Callback
from cordgt.errors import DataError
from cordgt.io.datasets import archives, download, registry, sources
from cordgt.io.datasets import fetch as fetching
from cordgt.io.datasets.archives import Archive
from cordgt.io.datasets.download import DownloadError
from cordgt.io.datasets.fetch import fetch
from cordgt.io.readers import read_events
from cordgt.tasks.link import split_stream
from cordgt.workflows.train import train


class Server(ThreadingHTTPServer):
    """Serves files by path, with configurable failures."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: list[int] = []  # bytes after which the next connections close
        self.codes: list[int] = []  # status codes of the next answers
        self.etag: str | None = '"1"'
        self.ranges = True
        self.shift = 0  # ranges start this many bytes too late
        self.retry_after: str | None = None
        self.redirect: str | None = None
        self.drip: float | None = None  # seconds between single bytes, after the first 1000
        self.drip_headers = False
        self.requests: list[tuple[str, str | None]] = []  # path and range

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        s, path = self.server, self.path.lstrip("/")
        byte_range = self.headers.get("Range")
        s.requests.append((path, byte_range))
        if s.drip_headers:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for k in range(100):
                self.wfile.write(b"X-%d: 1\r\n" % k)
                time.sleep(0.1)
            return
        code = s.codes.pop(0) if s.codes else 302 if s.redirect else 404 if path not in s.files else 200
        if code != 200:
            self.send_response(code)
            self.send_header("Content-Length", "0")
            if s.retry_after:
                self.send_header("Retry-After", s.retry_after)
            if s.redirect:
                self.send_header("Location", s.redirect)
            self.end_headers()
            return
        content, start = s.files[path], 0
        if byte_range and s.ranges and self.headers.get("If-Range") == s.etag:
            start = int(re.fullmatch(r"bytes=(\d+)-", byte_range)[1]) + s.shift  # type: ignore[index]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if s.etag:
            self.send_header("ETag", s.etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if s.drip:
            self.wfile.write(content[start : start + 1000])
            for k in range(start + 1000, start + 1100):
                self.wfile.write(content[k : k + 1])
                time.sleep(s.drip)
            return
        self.wfile.write(content[start : start + s.cut.pop(0)] if s.cut else content[start:])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Do not log."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without delay, in a separate data folder, without proxies."""
    monkeypatch.setattr(download, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


def published(monkeypatch: pytest.MonkeyPatch, name: str, **numbers: int) -> None:
    """Change the published statistics of a dataset."""
    monkeypatch.setitem(registry.KNOWN_DATASETS, name, replace(registry.KNOWN_DATASETS[name], **numbers))


def list_files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


CONTENT = bytes(range(256)) * 5000


# --- downloads ---


class RecordingCallback(Callback):
    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.steps: list[int] = []

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.stages.append((name, total))

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.steps.append(n)


def test_download(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    progress = RecordingCallback()
    checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    download.download(server.url("x"), tmp_path / "x", checksum=checksum, callbacks=progress)
    assert (tmp_path / "x").read_bytes() == CONTENT and list_files(tmp_path) == ["x"]
    assert progress.stages == [("x.part", len(CONTENT))]
    assert progress.steps[0] == 0 and sum(progress.steps) == len(CONTENT)
    download.download(server.url("x"), tmp_path / "x", checksum=checksum)
    assert len(server.requests) == 1  # the file is there, and its checksum matches
    (tmp_path / "x").write_bytes(CONTENT[:-1])
    download.download(server.url("x"), tmp_path / "x", checksum=checksum)
    assert len(server.requests) == 2 and (tmp_path / "x").read_bytes() == CONTENT


def test_interrupted_download_resumes(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    server.cut = [100_000, 300_000]
    download.download(server.url("x"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert [k for _, k in server.requests] == [None, "bytes=100000-", "bytes=400000-"]


def test_partial_download_is_resumed_by_the_next_call(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    server.cut = [1000] * download.MAX_ATTEMPTS
    with pytest.raises(DownloadError, match=r"5,000 bytes are kept: run the same command again to resume"):
        download.download(server.url("x"), tmp_path / "x")
    assert list_files(tmp_path) == ["x.part", "x.part.json"]
    download.download(server.url("x"), tmp_path / "x")
    assert server.requests[-1] == ("x", "bytes=5000-")
    assert (tmp_path / "x").read_bytes() == CONTENT and list_files(tmp_path) == ["x"]


def test_wrong_range_is_not_appended(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    server.cut, server.shift = [1000], 7
    download.download(server.url("x"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert [k for _, k in server.requests] == [None, "bytes=1000-", None]


def test_retry_after_is_respected(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    server.files["x"], server.codes, server.retry_after = b"[1]", [503], "7"
    assert download.read_json(server.url("x")) == [1]
    assert waited == [7.0]


@pytest.mark.parametrize("change", ["another version", "no mark", "no ranges", "another address"])
def test_download_restarts_if_the_file_may_have_changed(server: Server, tmp_path: Path, change: str) -> None:
    server.files["x"] = server.files["y"] = b"old" * 5000
    if change == "no mark":
        server.etag = None
    server.cut = [1000] * download.MAX_ATTEMPTS
    with pytest.raises(DownloadError):
        download.download(server.url("y" if change == "another address" else "x"), tmp_path / "x")
    server.files["x"] = CONTENT
    server.etag = {"another version": '"2"', "no mark": None}.get(change, '"1"')
    server.ranges = change != "no ranges"
    download.download(server.url("x"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("published", [{"checksum": f"md5:{0:032}"}, {"checksum": f"sha256:{0:064}"}, {"size": 7}])
def test_file_with_wrong_checksum_or_size_is_deleted(server: Server, tmp_path: Path, published: dict[str, Any]) -> None:
    server.files["x"] = CONTENT
    with pytest.raises(DataError, match=r"expected"):
        download.download(server.url("x"), tmp_path / "x", **published)
    assert list_files(tmp_path) == []


def test_checksum_in_capitals(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    checksum = f"md5:{hashlib.md5(CONTENT).hexdigest().upper()}"
    for _ in range(2):
        download.download(server.url("x"), tmp_path / "x", checksum=checksum)
    assert len(server.requests) == 1  # complete and correct the first time


def test_busy_server_is_retried_but_not_found_is_final(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    server.codes = [503, 429]
    download.download(server.url("x"), tmp_path / "x")
    assert len(server.requests) == 3
    with pytest.raises(DataError, match=r"the server answers 404. It may have moved"):
        download.download(server.url("y"), tmp_path / "y")
    assert len(server.requests) == 4
    server.codes = [500] * download.MAX_ATTEMPTS
    with pytest.raises(DataError, match=r"the server answers 500. Try again later"):
        download.download(server.url("x"), tmp_path / "z")


def test_no_network(server: Server, tmp_path: Path) -> None:
    url = server.url("x")
    server.server_close()
    with pytest.raises(DownloadError, match=r"127.0.0.1 cannot be reached.*Connection refused\)\. Check the network"):
        download.download(url, tmp_path / "x")
    with pytest.raises(DataError, match="not an http or https URL"):
        download.download("file:///etc/passwd", tmp_path / "x")
    assert list_files(tmp_path) == []


def test_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["x"] = CONTENT
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="has 10 bytes free"):
        download.download(server.url("x"), tmp_path / "x")


def test_deadline_keeps_the_partial_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then never runs into the timeout, but into the deadline."""
    server.files["x"] = CONTENT
    server.drip = 0.1
    with monkeypatch.context() as patch, pytest.raises(DownloadError, match=r"is too slow.* 1,0\d\d bytes are kept"):
        patch.setattr(download, "DEADLINE", 0.5)
        download.download(server.url("x"), tmp_path / "x")
    server.drip = None
    download.download(server.url("x"), tmp_path / "x")
    assert server.requests[1][1] is not None and (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("slow", ["body", "headers", "retries"])
def test_list_of_files_has_a_deadline(server: Server, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    server.files["x"] = b"[" * 3000
    server.drip, server.drip_headers = (0.1 if slow == "body" else None), slow == "headers"
    if slow == "retries":
        server.codes, server.retry_after = [503] * 5, "30"
    monkeypatch.setattr(download, "LIST_DEADLINE", 0.5)
    start = time.monotonic()
    with pytest.raises(DownloadError, match="is too slow"):
        download.read_json(server.url("x"))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_redirect_to_another_protocol_raises(server: Server, tmp_path: Path, target: str) -> None:
    server.redirect = target
    with pytest.raises(DownloadError, match=f"redirects to {target}, which is not an http or https URL"):
        download.download(server.url("x"), tmp_path / "x")
    assert len(server.requests) == 1
    assert list_files(tmp_path) == []


def test_redirect_from_https_to_http_raises(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate of the server")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *subject],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.files["x"] = CONTENT
    secure = Server()
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    secure.redirect = server.url("x")
    thread = threading.Thread(target=secure.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    try:
        with pytest.raises(DownloadError, match="which is not encrypted"):
            download.download(secure.url("x").replace("http:", "https:"), tmp_path / "out" / "x")
    finally:
        secure.shutdown()
        thread.join()
        secure.server_close()
    assert server.requests == []


def test_deeply_nested_or_endless_list(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["deep"] = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(DownloadError, match="the answer is not JSON"):
        download.read_json(server.url("deep"))
    monkeypatch.setattr(download, "MAX_JSON_BYTES", 1000)
    with pytest.raises(DownloadError, match="more than 1,000 bytes"):
        download.read_json(server.url("deep"))


def test_deeply_nested_record_of_a_partial_file(server: Server, tmp_path: Path) -> None:
    server.files["x"] = CONTENT
    (tmp_path / "x.part").write_bytes(b"abc")
    (tmp_path / "x.part.json").write_text("[" * 100_000)
    download.download(server.url("x"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


# --- archives ---


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["../ml_uci.csv", "/etc/ml_uci.csv", "a/../../ml_uci.csv", "..\\ml_uci.csv", "C:/x"])
def test_archive_paths_outside_the_folder(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "a.zip", {"good": b"x", name: b"x"})
    with pytest.raises(DataError, match="leads outside"):
        Archive(path).names()
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="leads outside"):
        Archive(path).extract("good", tmp_path / "out" / "good")
    assert list_files(tmp_path) == ["a.zip"]


def test_archive_with_links_damage_or_absurd_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        link = tarfile.TarInfo("ml_uci.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(DataError, match="a link or a device"):
        Archive(tmp_path / "a.tar").names()
    whole = zipped(tmp_path / "b.zip", {"x": np.random.default_rng(0).bytes(10_000)}).read_bytes()
    (tmp_path / "b.zip").write_bytes(whole[:5000])
    with pytest.raises(DataError, match="damaged, incomplete, or not a zip or tar"):
        Archive(tmp_path / "b.zip").names()
    (tmp_path / "c.zip").write_bytes(whole[:60] + b"!" + whole[61:])
    with pytest.raises(DataError, match="damaged"):
        Archive(tmp_path / "c.zip").extract("x", tmp_path / "x")
    bomb = zipped(tmp_path / "d.zip", {"x": bytes(2 << 20)})
    monkeypatch.setattr(archives, "MAX_BYTES", 1 << 20)
    with pytest.raises(DataError, match="the limit is"):
        Archive(bomb).extract("x", tmp_path / "x")


def test_zip_with_links_or_duplicates(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("uci/ml_uci.csv")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match=r"link.zip is refused: uci/ml_uci.csv is a link or a device"):
        Archive(tmp_path / "link.zip").names()
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("ml_uci.csv", "a")
        archive.writestr("ml_uci.csv", "b")
    with pytest.raises(DataError, match=r"twice.zip is refused: it has two files ml_uci.csv"):
        Archive(tmp_path / "twice.zip").extract("ml_uci.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    whole = zipped(tmp_path / "cut.zip", {"ml_uci.csv": CONTENT}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.zip is damaged, incomplete") as caught:
        Archive(tmp_path / "cut.zip").names()
    assert "method" not in str(caught.value)


def test_tar_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("uci/ml_uci.csv")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    Archive(tmp_path / "a.tar.gz").extract("ml_uci.csv", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"abc"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_truncated_tar(tmp_path: Path, mode: Any) -> None:
    """Every truncation is found, also one within the zeros or the checksum at the end."""
    path = tmp_path / "a.tgz"
    with tarfile.open(path, mode) as tar:
        for name in ("ml_uci.csv", "ml_enron.csv"):
            member = tarfile.TarInfo(name)
            member.size = 700
            tar.addfile(member, io.BytesIO(np.random.default_rng(0).bytes(700)))
    whole = path.read_bytes()
    end = whole.rstrip(b"\0") if mode == "w" else whole
    lengths = {len(end) - k for k in (1, 4, 8, 9, 20, 300, 800)} | {10, len(end) // 2}
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="damaged"):
            Archive(path).extract("ml_uci.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_files_of_one_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"new/ml_uci.csv": b"x", "old/ml_uci.csv": b"y", "ml_enron.csv": b"z"})
    with pytest.raises(DataError, match=r"has 2 files called ml_uci.csv: new/ml_uci.csv, old/ml_uci.csv"):
        Archive(path).extract("ml_uci.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    Archive(path).extract("ml_enron.csv", tmp_path / "out")


# --- datasets ---

JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n" + "".join(
    f"{u},{i},{t}.0,{int(t == 5)},{t / 10},{u}\n"
    for t, (u, i) in enumerate([(1, 0), (0, 2), (2, 1), (1, 0), (0, 0), (2, 2)])
)
ML = ",u,i,ts,label,idx\n" + "".join(f"{k},{1 + k % 3},{1 + (k + 1) % 3},{k}.0,0,{k + 1}\n" for k in range(6))


def dgb(name: str = "uci") -> dict[str, bytes]:
    zeros = io.BytesIO()
    np.save(zeros, np.zeros((7, 4)))
    made = {f"{name}/ml_{name}.csv": ML.encode(), f"{name}/ml_{name}.npy": zeros.getvalue()}
    return {**made, f"__MACOSX/{name}/._ml_{name}.csv": b"junk"}


def test_fetch_jodie(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SNAP", server.url("jodie"))
    published(monkeypatch, "wikipedia", nodes=6, links=6, link_attributes=2)
    server.files["jodie/wikipedia.csv"] = JODIE.encode()
    server.cut = [100]
    found = fetch("wikipedia")
    assert found.path == tmp_path / "data" / "wikipedia" / "ml_wikipedia.csv" and not found.already_present
    assert list_files(tmp_path / "data") == [
        f"wikipedia/{k}" for k in ("ml_wikipedia.csv", "ml_wikipedia.npy", "source.json")
    ]
    ours, theirs = registry.load_dataset("wikipedia"), read_events_of(JODIE, tmp_path)
    for key in ("src", "dst", "t", "edge_x", "label"):
        assert np.array_equal(getattr(ours, key), getattr(theirs, key)), key
    first = (tmp_path / "data/wikipedia/ml_wikipedia.csv").read_text().splitlines()
    assert first[:2] == [",u,i,ts,label,idx", "0,2,4,0,0,1"]  # user 1 and item 0, after three users
    again = fetch("wikipedia")
    assert again.already_present and len(server.requests) == 2


def test_unreadable_labels_raise_or_leave_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable label must not turn all labels into 0."""
    given = tmp_path / "given"
    given.mkdir()
    lines = JODIE.splitlines()
    lines[3] = ",".join([*lines[3].split(",")[:3], "0.X", *lines[3].split(",")[4:]])
    for name in ("mooc", "lastfm"):
        published(monkeypatch, name, nodes=6, links=6, link_attributes=2)
        (given / f"{name}.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=rf"{given}/mooc.csv, line 4: the label '0.X' is not a number"):
        fetch("mooc", local=given)
    assert list_files(tmp_path / "data") == []
    notes = fetch("lastfm", local=given).notes  # its labels are not required
    assert len(notes) == 1 and f"{given}/lastfm.csv, line 4: the label '0.X' is not a number" in notes[0]
    assert "left out" in notes[0]
    assert not np.isfinite(registry.load_dataset("lastfm").label).any()
    fetched = fetch("mooc", local=given, accept_different=True)
    assert "line 4" in fetched.notes[0] and fetched.notes[1].startswith("mooc: no labels (published: 0 and 1)")
    assert registry.load_dataset("mooc").notes[-1] == "not mooc as published: no labels (published: 0 and 1)"


@pytest.mark.parametrize(
    ("column", "message"),
    [("0", r"every label is 0 \(published: 0 and 1\)"), ("?", r"given/ml_mooc.csv, line 2: the label '\?' is not")],
)
def test_labels_of_converted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, message: str) -> None:
    published(monkeypatch, "mooc", nodes=3, links=6, link_attributes=0)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "ml_mooc.csv").write_text(ML.replace(".0,0,", f".0,{column},"))
    with pytest.raises(DataError, match=message):
        fetch("mooc", local=tmp_path / "given")
    zipped(tmp_path / "mooc.zip", {"mooc/ml_mooc.csv": (tmp_path / "given" / "ml_mooc.csv").read_bytes()})
    with pytest.raises(DataError, match=message.replace("given/ml_mooc.csv", f"ml_mooc.csv in {tmp_path}/mooc.zip")):
        fetch("mooc", local=tmp_path / "mooc.zip")
    assert list_files(tmp_path / "data") == []


def test_errors_list_the_alternatives(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SNAP", server.url("jodie"))
    monkeypatch.setattr(sources, "ZENODO", server.url("record"))
    by_hand = r"pass them with --from DIR\."
    with pytest.raises(DataError, match=rf"answers 404\. .*{by_hand}"):
        fetch("mooc")
    server.codes = [500] * download.MAX_ATTEMPTS
    with pytest.raises(DataError, match=rf"answers 500\. .*{by_hand}"):
        fetch("mooc")
    for answer in (b"<html>", b"{}"):
        server.files["record"] = answer
        with pytest.raises(DataError, match=rf"does not answer as it used to.*{by_hand}"):
            fetch("uci")


def test_unreadable_download_is_named_by_its_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SNAP", server.url("jodie"))
    server.files["jodie/mooc.csv"] = JODIE.replace("1,0,0.0", "1,0,never", 1).encode()
    with pytest.raises(DataError, match=r"^http://127\.0\.0\.1:\d+/jodie/mooc.csv, line \d: "):
        fetch("mooc")


def read_events_of(text: str, folder: Path) -> Any:
    (folder / "jodie.csv").write_text(text)
    return read_events(folder / "jodie.csv")


def test_fetch_dgb(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(monkeypatch, "social_evolution", nodes=3, links=6)
    content = zipped(tmp_path / "a.zip", dgb("SocialEvo")).read_bytes()
    server.files["SocialEvo.zip"] = content
    listed = {"key": "SocialEvo.zip", "size": len(content), "checksum": f"md5:{hashlib.md5(content).hexdigest()}"}
    server.files["record"] = json.dumps(
        {"files": [{**listed, "links": {"self": server.url("SocialEvo.zip")}}]}
    ).encode()
    monkeypatch.setattr(sources, "ZENODO", server.url("record"))
    found = fetch("social_evolution")
    assert found.statistics["nodes"] == 3 and found.statistics["links"] == 6
    assert registry.load_dataset("social_evolution").n_events == 6
    about = json.loads((tmp_path / "data/social_evolution/source.json").read_text())
    assert about["sha256"] == {"SocialEvo.zip": hashlib.sha256(content).hexdigest()}
    server.files["SocialEvo.zip"] = content[:-1] + b"?"  # same size, different content
    with pytest.raises(DataError, match=r"is not the published file\. MD5"):
        fetch("social_evolution", overwrite=True)
    assert registry.load_dataset("social_evolution").n_events == 6  # the old version is still there
    assert not (tmp_path / "data" / ".downloads").exists()
    server.files["record"] = b"{}"
    with pytest.raises(DataError, match="does not answer as it used to"):
        fetch("social_evolution", overwrite=True)


def test_different_counts_raise_and_leave_no_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SNAP", server.url("jodie"))
    published(monkeypatch, "mooc", nodes=6, links=7, link_attributes=2)
    server.files["jodie/mooc.csv"] = JODIE.encode()
    with pytest.raises(DataError, match=r"not mooc as published: 6 links \(published: 7\)"):
        fetch("mooc")
    assert list_files(tmp_path / "data") == []
    fetch("mooc", accept_different=True)
    assert "not mooc as published" in " ".join(registry.load_dataset("mooc").notes)


def test_changed_file_raises(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SNAP", server.url("jodie"))
    published(monkeypatch, "mooc", nodes=6, links=6, link_attributes=2)
    server.files["jodie/mooc.csv"] = JODIE.encode()
    fetch("mooc")
    server.files["jodie/mooc.csv"] = JODIE.replace("0.5", "0.7").encode()
    server.etag = '"2"'
    with pytest.raises(DataError, match=r"mooc.csv has changed since"):
        fetch("mooc", overwrite=True)
    fetch("mooc", overwrite=True, accept_different=True)


def test_interrupt_between_renames_keeps_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, aside, renamed = tmp_path / "uci", tmp_path / "aside", fetching.os.replace
    for folder in (target, aside):
        folder.mkdir()
        (folder / "name").write_text(folder.name)

    def interrupted(old: Path, new: Path) -> None:
        if old == aside:
            raise KeyboardInterrupt
        renamed(old, new)

    monkeypatch.setattr(fetching.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetching._move_into_place(aside, target)
    assert (target / "name").read_text() == "uci"


def test_unreadable_local_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "ml_uci.csv").write_text(ML)
    monkeypatch.setattr(fetching, "file_hash", refused)
    with pytest.raises(DataError, match=r"ml_uci\.csv cannot be read or written: Permission denied"):
        fetch("uci", local=tmp_path)


@pytest.mark.parametrize("form", ["folder", "own folder", "zip", "whole archive", "archive itself", "gzip"])
def test_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    published(monkeypatch, "uci", nodes=3, links=6)
    given = tmp_path / "given"
    (given / "uci").mkdir(parents=True)
    if form in ("folder", "own folder"):
        (given / ("uci" if form == "own folder" else "") / "ml_uci.csv").write_text(ML)
    elif form == "gzip":
        import gzip

        (given / "ml_uci.csv.gz").write_bytes(gzip.compress(ML.encode()))
    else:
        inside = (
            {f"TG_network_datasets/{k}": v for k, v in (dgb() | dgb("enron")).items()} if "whole" in form else dgb()
        )
        zipped(given / ("TG_network_datasets.zip" if form == "whole archive" else "uci.zip"), inside)
    fetch("uci", local=given / "uci.zip" if form == "archive itself" else given)
    assert registry.load_dataset("uci").n_events == 6
    assert fetch("uci").already_present


def test_local_folder_with_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        fetch("uci", local=tmp_path / "none")
    (tmp_path / "half").mkdir()
    with pytest.raises(DataError, match=r"has no file of uci: looked for ml_uci.csv"):
        fetch("uci", local=tmp_path / "half")
    published(monkeypatch, "wikipedia", nodes=3, links=6, link_attributes=2)
    (tmp_path / "half" / "ml_wikipedia.csv").write_text(ML)
    with pytest.raises(DataError, match=r"incomplete: the 2 features of the events are missing"):
        fetch("wikipedia", local=tmp_path / "half")
    (tmp_path / "half" / "gowalla_checkins.csv").write_text("userid,placeid,datetime\n")
    with pytest.raises(DataError, match=r"it lacks gowalla_spots_subset1.csv, gowalla_cat"):
        fetch("food", local=tmp_path / "half")
    zipped(tmp_path / "half" / "uci.zip", {"../ml_uci.csv": b""})
    with pytest.raises(DataError, match="leads outside"):
        fetch("uci", local=tmp_path / "half")
    zipped(tmp_path / "half" / "enron.zip", {"readme": b""})
    with pytest.raises(DataError, match="has no file of enron"):
        fetch("enron", local=tmp_path / "half")
    assert list_files(tmp_path / "data") == []


def test_unknown_names(tmp_path: Path) -> None:
    assert set(sources.SOURCES) == set(registry.KNOWN_DATASETS)
    with pytest.raises(DataError, match="Did you mean 'reddit'"):
        fetch("redit")
    with pytest.raises(DataError, match=r"Fetch it: cordgt data fetch reddit"):
        registry.load_dataset("reddit")


# --- Gowalla ---

STRUCTURE = {
    "spot_categories": [
        {"name": "Food", "url": "/categories/7", "spot_categories": [
            {"name": "Pizza", "url": "/categories/70", "spot_categories": [{"name": "Deep", "url": "/categories/700"}]},
        ]},
        {"name": "Outdoors", "url": "/categories/9", "spot_categories": [{"name": "Park", "url": "/categories/90"}]},
    ]
}  # fmt: skip
SPOTS = """id,created_at,lng,lat,photos_count,spot_categories
11,x,0,0,1,"[{'url': '/categories/700', 'name': 'Deep'}]"
12,x,0,0,1,"[{'url': '/categories/90', 'name': 'Park'}]"
13,x,0,0,1,"[{'url': '/categories/70', 'name': 'Pizza'}, {'url': '/categories/90', 'name': 'Park'}]"
14,x,0,0,1,"[{'url': '/categories/77', 'name': 'Of old'}]"
"""
CHECKINS = """userid,placeid,datetime
5,11,2011-06-30T23:59:59Z
5,11,2011-07-01T00:00:00Z
6,13,2011-01-01T00:00:00Z
6,12,2010-12-31T23:59:59Z
7,12,2009-01-01T00:00:05Z
5,14,2011-03-01T00:00:00Z
7,13,2010-01-01T00:00:00Z
7,11,2010-12-31T23:59:59Z
"""


def test_gowalla_is_filtered_by_category_and_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "gowalla_category_structure.json").write_text(json.dumps(STRUCTURE))
    (given / "gowalla_spots_subset1.csv").write_text(SPOTS)
    (given / "gowalla_checkins.csv").write_text(CHECKINS)
    published(monkeypatch, "food", nodes=4, links=2)
    published(monkeypatch, "outdoors", nodes=4, links=3)
    for name in ("food", "outdoors"):
        fetch(name, local=given)
    food, outdoors = registry.load_dataset("food"), registry.load_dataset("outdoors")
    assert food.t.tolist() == [0, 181 * 86400 - 1]
    assert outdoors.t.tolist() == [0, 365 * 86400 - 5, 730 * 86400 - 6]  # the second is 13, also a park
    assert [outdoors.ids.decode(x).to_pylist() for x in (outdoors.src, outdoors.dst)] == [[2, 2, 1], [3, 4, 3]]
    (given / "gowalla_checkins.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not Gowalla's file as published"):
        fetch("food", local=given, overwrite=True, accept_different=True)
    (given / "gowalla_category_structure.json").write_text("{}")
    with pytest.raises(DataError, match="not Gowalla's category structure"):
        fetch("food", local=given, overwrite=True, accept_different=True)
    assert registry.load_dataset("food").n_events == 2


def test_fetch_gowalla(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"gowalla_category_structure.json": json.dumps(STRUCTURE), "gowalla_spots_subset1.csv": SPOTS}
    files["gowalla_checkins.csv"] = CHECKINS
    rows = []
    for name, content in files.items():
        server.files[name] = content.encode()
        rows.append({"name": name, "size": len(content), "computed_md5": hashlib.md5(content.encode()).hexdigest()})
        rows[-1]["download_url"] = server.url(name)
    server.files["article"] = json.dumps({"files": rows}).encode()
    monkeypatch.setattr(sources, "FIGSHARE", server.url("article"))
    with pytest.raises(DataError, match="not food as published"):
        fetch("food")
    before = len(server.requests)
    fetch("food", accept_different=True)
    assert len(server.requests) == before + 1  # only the list: the files are there, and their checksums match


# --- TGB and TGB-Seq ---


TGB = "ts,u,v,rating\n" + "".join(f"{100 + k},{'abc'[k % 3]},{'xya'[k % 2 + k // 20]},{k % 3}\n" for k in range(40))


def test_fetch_tgb(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is one node on both sides; the feature is log2 of the weight, and a weight of 0 counts as 1."""
    monkeypatch.setattr(sources, "TGB", server.url("tgb"))
    published(monkeypatch, "tgbl-review", nodes=5, links=40)
    content = zipped(tmp_path / "a.zip", {"tgbl-review_edgelist_v2.csv": TGB.encode(), "x_test_ns_v2.pkl": b"."})
    server.files["tgb/tgbl-review-v2.zip"] = content.read_bytes()
    found = fetch("tgbl-review")
    assert list_files(tmp_path / "data") == [
        f"tgbl-review/{k}" for k in ("ml_tgbl-review.csv", "ml_tgbl-review.npy", "source.json")
    ]
    stream = registry.load_dataset("tgbl-review")
    assert (stream.n_nodes, stream.n_events, found.statistics["link_attributes"]) == (5, 40, 1)
    assert stream.edge_x[:3, 0].tolist() == [0.0, 0.0, 1.0]
    assert set(stream.src.tolist()) & set(stream.dst.tolist())  # "a" is a source and a destination
    server.files["tgb/tgbl-review-v2.zip"] = zipped(tmp_path / "b.zip", {"other.csv": b""}).read_bytes()
    with pytest.raises(DataError, match=r"has no tgbl-review_edgelist_v2\.csv"):
        fetch("tgbl-review", overwrite=True, accept_different=True)
    for text, message in ((TGB.replace(",1\n", ",-1\n"), "line 3"), ("ts,u\n1,2\n", "2 columns"), ("", "CSV")):
        (tmp_path / "hand").mkdir(exist_ok=True)
        (tmp_path / "hand" / "tgbl-review_edgelist_v2.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            fetch("tgbl-review", overwrite=True, local=tmp_path / "hand")
    assert registry.load_dataset("tgbl-review").n_events == 40


def seq_file(n: int = 60, n_train: int = 40, n_validation: int = 11) -> str:
    """Two events at each time, so that the split lies between times."""
    split = [0] * n_train + [1] * n_validation + [2] * (n - n_train - n_validation)
    rows = [f"{k % 5},{5 + (k * k) % 7},{10 * (k // 2 if k < n_train else k)},{split[k]}" for k in range(n)]
    return "src,dst,time,split\n" + "\n".join(rows) + "\n"


def test_fetch_tgb_seq_and_evaluate_as_published(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note has the settings of the published split; a run with them is evaluated by one call."""
    monkeypatch.setattr(sources, "HUGGING_FACE", server.url("hf"))
    content = seq_file().encode()
    published(monkeypatch, "GoogleLocal", nodes=9, links=60)
    listed = {"path": "GoogleLocal.csv", "size": len(content), "type": "file"}
    readme = {"path": "README.md", "size": 1, "type": "file"}
    lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
    server.files["hf/api/datasets/TGB-Seq/GoogleLocal/tree/main"] = json.dumps(
        [readme, {**listed, "lfs": lfs}]
    ).encode()
    server.files["hf/datasets/TGB-Seq/GoogleLocal/resolve/main/GoogleLocal.csv"] = content
    found = fetch("GoogleLocal")
    settings = dict(re.findall(r"--set (\w+)=(\S+)", found.notes[0]))
    assert settings.keys() == {"train_ratio", "val_ratio", "mask_nodes"}
    run = train("GoogleLocal", "popularity", out=tmp_path / "run", device="cpu", report=False, **settings)
    split = split_stream(run.original_stream, run.settings.protocol)
    assert [len(x) for x in (split.train, split.validation, split.test)] == [40, 11, 9]
    metrics = run.evaluate(protocol="tgb-seq")
    assert metrics["benchmark"] == {"name": "tgb-seq", "metric": "mrr", "changed": []}
    assert metrics["protocol"]["ranking"] == "100" and 0 < metrics["test"]["transductive"]["mrr"] <= 1
    server.files["hf/datasets/TGB-Seq/GoogleLocal/resolve/main/GoogleLocal.csv"] = content[:-2] + b"0\n"
    with pytest.raises(DataError, match="is not the published file"):
        fetch("GoogleLocal", overwrite=True)
    server.files["hf/api/datasets/TGB-Seq/GoogleLocal/tree/main"] = b'{"error": "gone"}'
    with pytest.raises(DataError, match="does not answer as it used to"):
        fetch("GoogleLocal", overwrite=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("src,dst,time,split", "src,dst,time,part", "no column split"),
        (",0\n", ",2\n", "does not follow the time"),
        ("\n0,5,", "\nx,5,", "as published"),
    ],
)
def test_other_files_are_not_tgb_seq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    published(monkeypatch, "YouTube", nodes=9, links=60)
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand" / "YouTube.csv").write_text(seq_file().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        fetch("YouTube", local=tmp_path / "hand")
