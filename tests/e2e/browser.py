"""A real browser for tests: Chromium or Chrome, driven through its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEY_CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
TIMEOUT = 60.0  # seconds per answer; a browser starts slowly on a loaded machine


def find_browser() -> str | None:
    """Return $CORDGT_BROWSER, or the path of an installed browser, or None."""
    return os.environ.get("CORDGT_BROWSER") or next((path for name in BROWSERS if (path := shutil.which(name))), None)


@dataclass
class OpenedPage:
    """An opened page: its network requests, console messages and layout."""

    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    width: int = 0  # of the content
    text: str = ""
    colours: tuple[str, str] = ("", "")  # of the background and of the text
    smallest: float = 0.0  # smallest font size in plots, in screen pixels
    picture: bytes = b""


class Browser:
    """A headless browser. Use as a context manager, which ends the process."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.mkdtemp(prefix="browser-")
        read_in, self.write_to = os.pipe()
        self.read_from, write_out = os.pipe()
        flags = (
            "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        )
        quiet = "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
        # The browser reads commands from descriptor 3 and answers on 4; the shell connects the pipes.
        command = f'exec "$0" "$@" 3<&{read_in} 4>&{write_out}'
        self.process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                path,
                *flags.split(),
                *quiet.split(),
                f"--user-data-dir={self.profile}",
                "about:blank",
            ],
            pass_fds=(read_in, write_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_in)
        os.close(write_out)
        self.last_id, self.buffer, self.events = 0, b"", list[dict[str, Any]]()
        self.session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self.write_to)
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_from)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, page: Path, *, width: int, dark: bool = False, media: str = "screen") -> OpenedPage:
        """Open a file in a new tab of the given width."""
        with self.tab(page.as_uri(), width=width, dark=dark, media=media):
            return self.look()

    @contextmanager
    def tab(self, url: str, *, width: int, dark: bool = False, media: str = "screen") -> Iterator[None]:
        """Open a page in a new tab of the given width; later calls act on it until the block ends."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.events.clear()
        self._call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")
        try:
            yield
        finally:
            self._call("Target.closeTarget", targetId=target)
            self.session = None

    def look(self) -> OpenedPage:
        """Return the state of the open page, with a picture of all of it."""
        seen = OpenedPage(width=self.evaluate("document.documentElement.scrollWidth"))
        seen.text = self.evaluate("document.body.innerText")
        seen.colours = tuple(
            self.evaluate(f"getComputedStyle(document.body).{k}") for k in ("backgroundColor", "color")
        )
        seen.smallest = self.evaluate(
            "Math.min(...[...document.querySelectorAll('svg text')].map(t => 11 * t.getScreenCTM().a), 99)"
        )
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        seen.picture = base64.b64decode(shot["data"])
        for event in self.events:
            self._record(seen, event["method"], event["params"])
        return seen

    def press(self, *keys: str) -> None:
        """Press and release keys, such as Tab or ArrowDown."""
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {}
            about = {"key": key, "code": key, "windowsVirtualKeyCode": KEY_CODES[key]}
            self._call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, text: str) -> None:
        """Type a text into the focused input."""
        self._call("Input.insertText", text=text)

    def wait_until(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until a JavaScript expression is true; TimeoutError with the page's text otherwise."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression}: {self.evaluate('document.body.innerText')}")
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the open page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    @staticmethod
    def _record(seen: OpenedPage, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            seen.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            seen.console.append(params["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            seen.console.append(json.dumps(params))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self.last_id += 1
        message: dict[str, Any] = {"id": self.last_id, "method": method, "params": params}
        if self.session is not None and not method.startswith("Target."):
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if "method" in answer:
                self.events.append(answer)

    def _wait_for(self, event: str) -> None:
        while not any(received["method"] == event for received in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        """Return the next message; TimeoutError if none comes."""
        deadline = time.monotonic() + TIMEOUT
        os.set_blocking(self.read_from, False)
        while b"\0" not in self.buffer:
            try:
                more = os.read(self.read_from, 1 << 20)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError("The browser does not answer.") from None
                time.sleep(0.005)
                continue
            if not more:
                raise RuntimeError(f"The browser ended with exit code {self.process.wait()}.")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))
