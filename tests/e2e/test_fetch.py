"""The output of `cordgt data fetch`. `tests/unit/test_fetch.py` tests the fetching itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cordgt.io.datasets import download, registry, sources

from .helpers import fails, works

ML = ",u,i,ts,label,idx\n" + "".join(f"{k},{1 + k % 3},{1 + (k + 1) % 3},{k}.0,0,{k + 1}\n" for k in range(60))


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small dataset under a known name into a folder."""
    monkeypatch.setitem(registry.KNOWN_DATASETS, "uci", replace(registry.KNOWN_DATASETS["uci"], nodes=3, links=60))
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand" / "ml_uci.csv").write_text(ML)
    return tmp_path / "hand"


def test_fetch_then_train_by_name(by_hand: Path) -> None:
    result = works("data", "fetch", "uci", "--from", by_hand)
    assert "ml_uci.csv: written" in result.err and "cordgt train uci" in result.err
    assert "published" in result.out and "intensity" in result.out
    assert works("data", "fetch", "uci", "--json").json["was_here"]
    works("train", "uci", "--model", "edgebank", "--out", "run")


def test_fetch_with_different_counts(by_hand: Path) -> None:
    (by_hand / "ml_uci.csv").write_text("\n".join(ML.splitlines()[:-1]) + "\n")
    fails("data", "fetch", "uci", "--from", by_hand, containing=["59 links (published: 60)", "--accept-different"])
    works("data", "fetch", "uci", "--from", by_hand, "--accept-different")


def test_fetch_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(sources, "SNAP", "http://127.0.0.1:9/jodie")  # no server there
    monkeypatch.setenv("no_proxy", "*")
    fails("data", "fetch", "reddit", containing=["127.0.0.1 cannot be reached", "Check the network", "--from DIR"])
    fails("data", "fetch", "redit", containing="Did you mean 'reddit'?")
    fails("train", "reddit", containing="cordgt data fetch reddit")
