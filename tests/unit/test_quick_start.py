"""A command that asks one question: what it imports, and that it reads and indexes the history once, in a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cordgt import DataError, EventStream, Run, RunError, train
from cordgt.events.times import TimeAxis
from cordgt.history.index_builder import IndexArrays
from cordgt.inference.prefetched_history import PrefetchedHistory

# Imports that no answer needs; together about half of the time of the command.
NEVER = (
    "torch._meta_registrations", "torch._decomp", "torch._dynamo", "torch._inductor", "torch.utils.tensorboard",
    "sympy", "pandas", "scipy", "sklearn", "matplotlib", "ray", "cordgt.experiments", "cordgt.analysis.report",
    "cordgt.serving", "cordgt.workflows", "cordgt.training.trainer",
)  # fmt: skip
MAX_MODULES = {"cordgt": 205, "torch": 800, "numba": 230}  # torch 2.13 and Numba 0.61 have 755 and 222

ASK = """
import json, sys
from cordgt.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    random, n = np.random.default_rng(0), 400
    src, dst = random.integers(0, 30, n), random.integers(0, 90, n)
    stream = EventStream.from_columns(src, dst, np.arange(n), time=TimeAxis("number"), shared_ids=False, name="shop")
    out = tmp_path_factory.mktemp("runs") / "run"
    small = {"epochs": 1, "hidden": 8, "heads": 1, "fanout": (2, 1)}
    return train(stream, "cordgt_plus", out=out, device="cpu", **small)


def ask(run: Run, *words: str) -> tuple[str, list[str]]:
    """Run a command in a new process; return its output and the modules it imported."""
    command = [sys.executable, "-c", ASK, *words, "--device", "cpu"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("command", ["recommend", "predict"])
def test_a_question_imports_only_what_it_needs(run: Run, command: str) -> None:
    words = ["--source", "3"] + (["--destination", "7"] if command == "predict" else ["--top", "5"])
    text, modules = ask(run, command, str(run.path), *words)
    assert [m for m in modules if any(m == name or m.startswith(f"{name}.") for name in NEVER)] == []
    for package, most in MAX_MODULES.items():
        assert sum(m == package or m.startswith(f"{package}.") for m in modules) <= most, package
    rows = [line.split(",") for line in text.splitlines()[1:]]
    if command == "recommend":
        answers = Run.load(run.path, "cpu").recommend("3", top=5)
        assert [(row[2], float(row[3])) for row in rows] == [(str(a.node), a.score) for a in answers]
    else:
        assert float(rows[0][3]) == float(Run.load(run.path, "cpu").score(["3"], ["7"])[0])


def test_the_history_is_read_and_indexed_once_in_a_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    load, build = EventStream.load, IndexArrays.build

    def counted_load(folder: Path) -> EventStream:
        calls.append(("load", threading.current_thread().name))
        return load(folder)

    def counted_build(*args: object) -> IndexArrays:
        calls.append(("build", threading.current_thread().name))
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(EventStream, "load", counted_load)
    monkeypatch.setattr(IndexArrays, "build", counted_build)
    early = Run.load(run.path, "cpu", prefetched=PrefetchedHistory.start(run.path))
    assert early.recommend(3) == run.recommend(3)
    assert calls == [("load", "cordgt-events"), ("build", "cordgt-events")]
    for field, tensor in vars(early.history.index).items():
        expected = getattr(run.history.index, field)
        assert (tensor == expected).all() if hasattr(tensor, "dtype") else tensor == expected


def test_later_events_get_an_index_of_their_own(run: Run) -> None:
    early = Run.load(run.path, "cpu", prefetched=PrefetchedHistory.start(run.path))
    time = TimeAxis("number")
    later = EventStream.from_columns([3, 3], [95, 7], [500, 501], time=time, shared_ids=False)
    assert early.with_events(later).recommend(3) == run.with_events(later).recommend(3)


def test_a_damaged_history_is_the_same_error(run: Run, tmp_path: Path) -> None:
    for name in ("config.toml", "metrics.json", "nodes.parquet", "model.safetensors"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    assert PrefetchedHistory.start(tmp_path) is None  # no events
    (tmp_path / "events.parquet").write_bytes(b"PAR1")
    for early in (None, PrefetchedHistory.start(tmp_path)):
        with pytest.raises(RunError, match=r"events\.parquet is damaged"):
            Run.load(tmp_path, "cpu", prefetched=early)
    early = PrefetchedHistory.start(tmp_path)
    assert early is not None
    with pytest.raises((RunError, DataError)):
        early.load(tmp_path)


AFTERWARDS = {
    "compile": "print(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item())",
    "count operations": "import torch.utils.flop_counter as f; f.FlopCounterMode(); print(2.0)",
    "trace": "import torch.fx.experimental.proxy_tensor as p; p.make_fx(lambda x: x + 1)(torch.ones(1)); print(2.0)",
    "plug-in": "finish_torch(); print(torch.func.vmap(lambda x: x + 1)(torch.ones(1)).item())",
}


@pytest.mark.parametrize("what", AFTERWARDS)
def test_torch_is_whole_for_other_code(what: str) -> None:
    start = "from cordgt.imports import finish_torch, quick_imports\nwith quick_imports():\n    import torch\n"
    code = start + AFTERWARDS[what]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2.0", done.stderr
