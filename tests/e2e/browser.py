"""A real browser for tests: Chromium or Chrome, driven through its debugging pipe. Nothing else is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0  # seconds for one answer: a loaded machine starts a browser slowly


def found() -> str | None:
    """The browser of this machine; $CORDGT_BROWSER names another."""
    return os.environ.get("CORDGT_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """A page as it was opened: what it asked the network for, what the console said, and how wide it became."""

    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    width: int = 0  # of the content
    text: str = ""
    colours: tuple[str, str] = ("", "")  # of the page and of its words
    smallest: float = 0.0  # font size of words in plots, in pixels of the screen
    picture: bytes = b""


class Browser:
    """A browser without a window. Use as a context manager: the process ends with it."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.mkdtemp(prefix="browser-")
        read_in, self.write_to = os.pipe()
        self.read_from, write_out = os.pipe()
        flags = (
            "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        )
        quiet = "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
        # The browser takes its orders from descriptor 3 and answers on 4: the shell puts the pipes there.
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
        self.number, self.unread, self.told = 0, b"", list[dict[str, Any]]()
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

    def open(self, page: Path, *, width: int, dark: bool = False, media: str = "screen") -> Seen:
        """Open a file at a width of the screen, in a new tab."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._ask(f"{domain}.enable")
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.told.clear()
        self._ask("Page.navigate", url=page.as_uri())
        self._until("Page.loadEventFired")
        seen = Seen(width=self._value("document.documentElement.scrollWidth"))
        seen.text = self._value("document.body.innerText")
        seen.colours = tuple(self._value(f"getComputedStyle(document.body).{k}") for k in ("backgroundColor", "color"))
        seen.smallest = self._value(
            "Math.min(...[...document.querySelectorAll('svg text')].map(t => 11 * t.getScreenCTM().a), 99)"
        )
        shot = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        seen.picture = base64.b64decode(shot["data"])
        for told in self.told:
            self._note(seen, told["method"], told["params"])
        self._ask("Target.closeTarget", targetId=target)
        self.session = None
        return seen

    @staticmethod
    def _note(seen: Seen, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            seen.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            seen.console.append(params["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            seen.console.append(json.dumps(params))

    def _value(self, expression: str) -> Any:
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        order: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session is not None and not method.startswith("Target."):
            order["sessionId"] = self.session
        os.write(self.write_to, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if "method" in answer:
                self.told.append(answer)

    def _until(self, event: str) -> None:
        while not any(told["method"] == event for told in self.told):
            self.told.append(self._read())

    def _read(self) -> dict[str, Any]:
        """The next message. TimeoutError where none comes."""
        ends = time.monotonic() + PATIENCE
        os.set_blocking(self.read_from, False)
        while b"\0" not in self.unread:
            try:
                more = os.read(self.read_from, 1 << 20)
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise TimeoutError("The browser does not answer.") from None
                time.sleep(0.005)
                continue
            if not more:
                raise RuntimeError(f"The browser ended by itself, with exit code {self.process.wait()}.")
            self.unread += more
        message, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(message))
