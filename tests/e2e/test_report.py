"""`cordgt report`: one run, several, and in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .browser import Browser, found
from .conftest import Trained
from .helpers import TINY, events, fails, unchanged, works, write_events, write_rows

WITHOUT = "no Chromium or Chrome on this machine ($CORDGT_BROWSER names one): the report was not opened"


@pytest.fixture(scope="module")
def pair(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and a rule on the same data. Read only."""
    other = tmp_path_factory.mktemp("pair") / "rule"
    works("train", trained.data, "--model", "edgebank", "--out", other)
    return trained.run, other


def test_training_leaves_a_report_and_says_so(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    said = works("train", data, "--model", "edgebank", "--out", "run")
    assert "See run/report.html" in said.err
    assert Path("run/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    said = works("train", data, "--model", "edgebank", "--out", "other", "--no-report")
    assert "report.html" not in said.err and not Path("other/report.html").exists()


def test_a_report_again(trained: Trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.run, tmp_path / "run"))
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert f"{run}/report.html: written" in works("report", run, "--device", "cpu").err
    assert (run / "report.html").read_bytes() == before
    with unchanged(run):
        works("report", run, "--output", "few.html", "--events", "5")
    assert re.search(r"5 of the \d+ test events", Path("few.html").read_text(encoding="utf-8"))


def test_several_runs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "comparison.html: written" in works("report", *pair).err
    made = Path("comparison.html").read_text(encoding="utf-8")
    assert "2 runs on data" in made and "edgebank" in made and "95 % interval" in made


def test_a_folder_of_seeds(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    said = works("train", data, *TINY, "--seeds", 2, "--out", "seeds")
    assert "compare: cordgt report seeds" in said.err
    works("report", "seeds", "--output", "both.html")
    made = Path("both.html").read_text(encoding="utf-8")
    assert "seed-0" in made and "seed-1" in made and "mean ± standard deviation" in made


def test_mistakes(trained: Trained, tmp_path: Path) -> None:
    fails("report", "nowhere", saying="nowhere does not exist")
    fails("report", trained.run, "--events", "some", saying="a number from 1 up, or all")
    fails("report", trained.run, "--events", "0", saying="a number from 1 up, or all")
    fails("report", trained.run, "--output", "report.pdf", saying=".html")
    fails("report", trained.run, "--output", "no/such/report.html", saying="no/such")
    fails("report", trained.run, trained.run, saying="is named twice")
    copy = Path(shutil.copytree(trained.run, tmp_path / "copy"))
    (copy / "metrics.json").unlink()
    fails("report", copy, saying="is not finished")


# --- in a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = found()
    if path is None:
        pytest.skip(WITHOUT)
    with Browser(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run on ids that are markup, scripts and requests."""
    folder = tmp_path_factory.mktemp("hostile")
    names = ["<script>document.title='caught'</script>", "<img src=http://127.0.0.1:9/x.png>", "\u202eabc", "x" * 300]
    rows = [(f"{names[a % 4]}{a}", f"{names[b % 4]}{b}", t) for a, b, t in events()]
    data = write_rows(folder / "data.tsv", rows, header=("src", "dst", "time"), mark="\t")
    works("train", data, *TINY, "--out", folder / "run")
    return folder / "run" / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_in_a_browser(browser: Browser, hostile: Path, width: int, dark: bool) -> None:
    seen = browser.open(hostile, width=width, dark=dark)
    assert seen.console == []
    assert seen.requests == [hostile.as_uri()]  # itself, and nothing else
    assert seen.width == width  # nothing sticks out: wide tables scroll by themselves
    assert seen.smallest > 9.5  # pixels: words in plots can be read
    paper, ink = (sum(map(int, colour[4:-1].split(","))) for colour in seen.colours)
    assert (paper < ink) == dark
    assert "The most surprising" in seen.text and "<script>" in seen.text


def test_printed(browser: Browser, hostile: Path) -> None:
    seen = browser.open(hostile, width=720, dark=True, media="print")
    assert seen.colours[0] == "rgb(255, 255, 255)" and seen.console == []
    assert seen.smallest > 6.5 and "Curves\nPrecision" not in seen.text  # without links that paper cannot follow


def test_a_comparison_in_a_browser(browser: Browser, pair: tuple[Path, Path], tmp_path: Path) -> None:
    works("report", *pair, "--output", "both.html")
    seen = browser.open(tmp_path / "both.html", width=390)
    assert (seen.console, seen.requests, seen.width) == ([], [(tmp_path / "both.html").as_uri()], 390)
    works("report", *pair, *_copies(pair[1], tmp_path, 3), "--output", "five.html")
    printed = browser.open(tmp_path / "five.html", width=720, media="print")
    assert (printed.console, printed.width) == ([], 720)


def _copies(run: Path, folder: Path, n: int) -> list[Path]:
    """The same run under names as long as people give them."""
    return [shutil.copytree(run, folder / f"the-same-run-once-more-{k}") for k in range(n)]
