"""Runs that many tests ask, trained once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .helpers import TINY, works, write_events, write_rows


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in a folder of its own, and with no data of the machine's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))
    yield


@dataclass(frozen=True)
class Trained:
    """A run folder and the file it was trained on."""

    run: Path
    data: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of events, in a folder of its own."""
    return write_events(tmp_path_factory.mktemp("data") / "data.csv")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on 160 events of integer ids. Read only."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_events(folder / "data.csv")
    works("train", data, *TINY, "--out", folder / "run")
    return Trained(folder / "run", data)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on customers and products whose ids overlap, with ISO dates and odd names of columns. Read only."""
    folder = tmp_path_factory.mktemp("shop")
    data = write_rows(folder / "shop.csv", shop_rows(), header=SHOP_HEADER)
    works("train", data, *SHOP_COLUMNS, "--ids", "separate", *TINY, "--out", folder / "run")
    return Trained(folder / "run", data)


SHOP_HEADER = ("bought on", "thing", "price", "who")
SHOP_COLUMNS = ["--src", "who", "--dst", "thing", "--time", "bought on", "--features", "price"]


def shop_rows(n: int = 120, first: int = 0) -> list[tuple[str, str, str, str]]:
    """Customers 001 to 009 and products 001 to 007: the same text, other nodes."""
    rows = []
    for k in range(first, first + n):
        hours, minutes = divmod(7 * k, 60)
        date = f"2024-03-{1 + hours // 24:02d} {hours % 24:02d}:{minutes:02d}:00"
        rows.append((date, f"{1 + (k * 3 + k // 5) % 7:03d}", f"{k % 4 / 2}", f"{1 + (k * 5 + k // 3) % 9:03d}"))
    return rows
