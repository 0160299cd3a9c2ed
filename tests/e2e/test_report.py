"""`cordgt report` of one run and of several, and the pages in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .browser import Browser, find_browser
from .conftest import Trained
from .helpers import TINY, events, fails, unchanged, works, write_events, write_rows

NO_BROWSER = "no Chromium or Chrome found; set $CORDGT_BROWSER to its path to run this test"


@pytest.fixture(scope="module")
def pair(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained run and an untrained one on the same data. Read only."""
    other = tmp_path_factory.mktemp("pair") / "rule"
    works("train", trained.data, "--model", "edgebank", "--out", other)
    return trained.run, other


def test_training_writes_a_report(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    result = works("train", data, "--model", "edgebank", "--out", "run")
    assert "See run/report.html" in result.err
    assert Path("run/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = works("train", data, "--model", "edgebank", "--out", "other", "--no-report")
    assert "report.html" not in result.err and not Path("other/report.html").exists()


def test_report_can_be_written_again(trained: Trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.run, tmp_path / "run"))
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert f"{run}/report.html: written" in works("report", run, "--device", "cpu").err
    assert (run / "report.html").read_bytes() == before
    with unchanged(run):
        works("report", run, "--output", "few.html", "--events", "5")
    assert re.search(r"5 of the \d+ test events", Path("few.html").read_text(encoding="utf-8"))


def test_report_of_several_runs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "comparison.html: written" in works("report", *pair).err
    page = Path("comparison.html").read_text(encoding="utf-8")
    assert "2 runs on data" in page and "edgebank" in page and "95 % interval" in page


def test_report_of_a_folder_of_seeds(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    result = works("train", data, *TINY, "--seeds", 2, "--out", "seeds")
    assert "compare: cordgt report seeds" in result.err
    works("report", "seeds", "--output", "both.html")
    page = Path("both.html").read_text(encoding="utf-8")
    assert "seed-0" in page and "seed-1" in page and "mean ± standard deviation" in page


def test_report_rejects_bad_arguments(trained: Trained, tmp_path: Path) -> None:
    fails("report", "nowhere", containing="nowhere does not exist")
    fails("report", trained.run, "--events", "some", containing="a number from 1 up, or all")
    fails("report", trained.run, "--events", "0", containing="a number from 1 up, or all")
    fails("report", trained.run, "--output", "report.pdf", containing=".html")
    fails("report", trained.run, "--output", "no/such/report.html", containing="no/such")
    fails("report", trained.run, trained.run, containing="is named twice")
    copy = Path(shutil.copytree(trained.run, tmp_path / "copy"))
    (copy / "metrics.json").unlink()
    fails("report", copy, containing="is not finished")


# --- in a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    with Browser(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose node ids are markup, scripts and URLs."""
    folder = tmp_path_factory.mktemp("hostile")
    names = ["<script>document.title='caught'</script>", "<img src=http://127.0.0.1:9/x.png>", "\u202eabc", "x" * 300]
    rows = [(f"{names[a % 4]}{a}", f"{names[b % 4]}{b}", t) for a, b, t in events()]
    data = write_rows(folder / "data.tsv", rows, header=("src", "dst", "time"), mark="\t")
    works("train", data, *TINY, "--out", folder / "run")
    return folder / "run" / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_report_in_a_browser(browser: Browser, hostile: Path, width: int, dark: bool) -> None:
    seen = browser.open(hostile, width=width, dark=dark)
    assert seen.console == []
    assert seen.requests == [hostile.as_uri()]  # only the page itself
    assert seen.width == width  # wide tables scroll; the page does not
    assert seen.smallest > 9.5  # pixels: text in plots is readable
    paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in seen.colours)
    assert (paper < ink) == dark
    assert "The most surprising" in seen.text and "<script>" in seen.text


def test_report_in_print(browser: Browser, hostile: Path) -> None:
    seen = browser.open(hostile, width=720, dark=True, media="print")
    assert seen.colours[0] == "rgb(255, 255, 255)" and seen.console == []
    assert seen.smallest > 6.5 and "Curves\nPrecision" not in seen.text  # no links in print


def test_comparison_in_a_browser(browser: Browser, pair: tuple[Path, Path], tmp_path: Path) -> None:
    works("report", *pair, "--output", "both.html")
    seen = browser.open(tmp_path / "both.html", width=390)
    assert (seen.console, seen.requests, seen.width) == ([], [(tmp_path / "both.html").as_uri()], 390)
    works("report", *pair, *_copies(pair[1], tmp_path, 3), "--output", "five.html")
    printed = browser.open(tmp_path / "five.html", width=720, media="print")
    assert (printed.console, printed.width) == ([], 720)


def _copies(run: Path, folder: Path, n: int) -> list[Path]:
    """Copies of a run with long names."""
    return [shutil.copytree(run, folder / f"the-same-run-once-more-{k}") for k in range(n)]
