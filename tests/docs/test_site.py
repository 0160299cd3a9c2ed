"""The site builds without a warning and needs no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .workspace import ROOT

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")


def test_site_builds_strictly_and_needs_no_other_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert {"changelog", "tutorials", "api", "concepts"} <= {path.name for path in tmp_path.iterdir()}
    other_servers = r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:'
    for page in ("index.html", "api/index.html", "tutorials/shop/index.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert re.findall(other_servers, text) == []
    reference = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert 'id="cordgt.Run.recommend"' in reference
    messages = (tmp_path / "messages" / "index.html").read_text(encoding="utf-8")
    assert messages.count("<li><code>") > 450 and "Choose another folder with --out." in messages
    start = (tmp_path / "start" / "index.html").read_text(encoding="utf-8")
    assert 'href="../tutorials/shop/"' in start and ".ipynb" not in start
