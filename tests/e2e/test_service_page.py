"""The page of the live service in a real browser: contents, keyboard, tokens, hostile ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from .browser import Browser, find_browser
from .live_service import LAST_TIME, NAMES, SCRIPT, LiveService, require_service_packages, train_run

NO_BROWSER = "no Chromium or Chrome found; set $CORDGT_BROWSER to its path to run this test"
READY = "document.getElementById('state').textContent === 'ready'"
NODE_IS_OPEN = "!document.getElementById('node').hidden"
FOCUS = "document.activeElement.id"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_service_packages()
    return train_run(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="module")
def service(run: Path) -> Iterator[LiveService]:
    """A service without tokens that has taken 120 events."""
    with LiveService(run, run.with_name("data-dir")) as started:
        assert started.add_events(120).status == 200
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    with Browser(path) as opened:
        yield opened


def text_of(browser: Browser, element: str) -> str:
    return str(browser.evaluate(f"document.getElementById('{element}').innerText"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_page_shows_the_stream_and_a_node(
    service: LiveService, browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    with browser.tab(f"{service.url}/#node=ann", width=width, dark=dark):
        browser.wait_until(f"{READY} && {NODE_IS_OPEN}")
        browser.wait_until("document.querySelector('#quality-chart path') !== null")
        seen = browser.look()
        n_bars = browser.evaluate("document.querySelectorAll('#past-chart rect').length")
        n_partners = browser.evaluate("document.querySelectorAll('#partners tbody tr').length")
    assert seen.console == []
    assert {url.split("/")[2] for url in seen.requests if not url.startswith("data:")} == {service.url.split("/")[2]}
    assert seen.width == width  # wide tables scroll; the page does not
    assert seen.smallest > 9.5  # pixels: text in charts is readable
    paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in seen.colours)
    assert (paper < ink) == dark
    assert n_bars > 0 and n_partners == len(NAMES) - 1
    for words in (
        "counts (",
        "Top movers",
        "Quality on arriving events",
        "AP, random",
        "Its past",
        "From the first 280",
    ):
        assert words in seen.text
    assert len(seen.picture) > 10_000


def test_hostile_ids_are_shown_as_text(service: LiveService, browser: Browser) -> None:
    with browser.tab(f"{service.url}/", width=1280):
        browser.wait_until(READY)
        title = browser.evaluate("document.title")
        for name in NAMES:
            browser.evaluate(f"location.hash = '#' + new URLSearchParams({{node: {name!r}}})")
            browser.wait_until(f"{NODE_IS_OPEN} && document.getElementById('node-id').textContent === {name!r}")
            browser.wait_until("document.querySelectorAll('#past tbody tr').length > 0")
        seen = browser.look()
        assert browser.evaluate("document.title") == title
        assert browser.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert SCRIPT in seen.text and seen.console == []


def test_keyboard_alone_finds_a_node_and_reads_a_chart(service: LiveService, browser: Browser) -> None:
    with browser.tab(f"{service.url}/", width=1280):
        browser.wait_until(READY)
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.className") == "skip"
        browser.press("Enter", "Tab")
        while browser.evaluate(FOCUS) != "search-input":
            browser.press("Tab")
        browser.write("ann")
        browser.wait_until("document.querySelectorAll('#search-results li').length === 2")
        browser.press("ArrowDown", "ArrowDown")
        assert (
            browser.evaluate("document.querySelector('#search-results [aria-selected=true] bdi').innerText") == "joann"
        )
        assert browser.evaluate("document.activeElement.getAttribute('aria-activedescendant')") == "found-1"
        browser.press("Enter")
        browser.wait_until(NODE_IS_OPEN)
        browser.wait_until(f"{FOCUS} === 'node-title'")  # the keyboard goes on from the answer
        assert text_of(browser, "node-id") == "joann"
        for _ in range(60):
            browser.press("Tab")
            assert browser.evaluate("document.activeElement.matches(':focus-visible')")  # one sees where one is
            if browser.evaluate(FOCUS) == "past-chart":
                break
        summary = browser.evaluate("document.querySelector('#past-chart figcaption').textContent")
        browser.press("End")
        value = browser.evaluate("document.querySelector('#past-chart figcaption').textContent")
        browser.press("Escape")
        assert value.startswith("from ") and value != summary
        assert browser.evaluate("document.querySelector('#past-chart figcaption').textContent") == summary
        # From a recommendation to its node, and back.
        browser.evaluate("document.querySelector('#partners button').focus()")
        browser.press("Enter")
        browser.wait_until("document.getElementById('node-id').textContent !== 'joann'")
        browser.evaluate("history.back()")
        browser.wait_until("document.getElementById('node-id').textContent === 'joann'")
        assert browser.look().console == []


def test_every_control_has_a_name_and_a_role(service: LiveService, browser: Browser) -> None:
    with browser.tab(f"{service.url}/#node=ann", width=1280):
        browser.wait_until(f"{READY} && {NODE_IS_OPEN}")
        unnamed = browser.evaluate(
            "[...document.querySelectorAll('input, button, [tabindex=\"0\"]')]"
            ".filter(e => !(e.labels && e.labels.length) && !e.innerText"
            " && !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')).length"
        )
        headings = browser.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
        missing = browser.evaluate(
            "[...document.querySelectorAll('[aria-labelledby]')]"
            ".filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length"
        )
    assert (unnamed, missing) == (0, 0)
    assert headings[0] == 1 and all(b - a <= 1 for a, b in pairwise(headings))


def test_page_follows_new_events(service: LiveService, browser: Browser) -> None:
    with browser.tab(f"{service.url}/", width=1280):
        browser.wait_until(READY)
        before = int(text_of(browser, "cut").replace(",", ""))
        assert service.add_events(5, start=LAST_TIME + 10_000).status == 200
        browser.wait_until(f"document.getElementById('cut').textContent === '{before + 5:,}'")


def test_list_of_endpoints(service: LiveService, browser: Browser) -> None:
    with browser.tab(f"{service.url}/docs", width=390):
        browser.wait_until("document.querySelectorAll('section').length > 10")
        seen = browser.look()
    assert seen.console == [] and seen.width == 390
    assert "POST /events" in seen.text and "/recommend/{source}" in seen.text


def test_page_asks_for_a_token(run: Path, browser: Browser) -> None:
    tokens = {"read": "read-secret", "write": "write-secret"}
    with LiveService(run, run.with_name("with-tokens"), tokens=tokens) as service:
        assert service.ask("/status").status == 401
        with browser.tab(f"{service.url}/#node=ann", width=390):
            browser.wait_until("!document.getElementById('token-form').hidden")
            assert browser.evaluate(FOCUS) == "token-input"
            browser.write("wrong")
            browser.press("Enter")
            browser.wait_until("document.getElementById('token-error').textContent.includes('read token')")
            browser.write("read-secret")
            browser.press("Enter")
            browser.wait_until(f"{READY} && {NODE_IS_OPEN}")
            assert browser.evaluate("document.getElementById('token-form').hidden")
            assert "read-secret" not in browser.evaluate("document.documentElement.outerHTML + location.href")
        assert "read-secret" not in service.log.read_text()


def test_large_whole_numbers_keep_every_digit(browser: Browser, service: LiveService) -> None:
    with browser.tab(f"{service.url}/", width=1280):
        browser.wait_until(READY)
        browser.evaluate(
            'window.fetch = async () => new Response(\'{"node": 9007199254740993, "n": 7}\'); '
            "import('/static/api.js').then(m => m.get('/x')).then(b => { window.parsed = [String(b.node), b.n]; })"
        )
        browser.wait_until("window.parsed !== undefined")
        assert browser.evaluate("window.parsed") == ["9007199254740993", 7]
