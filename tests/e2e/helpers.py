"""Running a command inside this process, and files to run it on."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import cordgt
from cordgt.cli import main
from cordgt.training import tensor_files
from cordgt.training.settings import FORMAT
from cordgt.training.tensor_files import read_tensor_file

# The smallest CorDGT there is: what is tested here is everything around the model.
SMALL = {"fanout": "2,1", "hidden": 4, "heads": 1, "layers": 1, "td_dim": 4, "sd_dim": 4, "epochs": 1}


def settings(**changes: Any) -> list[str]:
    """``--set`` options of a small model, some of them changed."""
    return [word for key, value in {**SMALL, **changes}.items() for word in ("--set", f"{key}={value}")]


TINY = settings()


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind: its exit code, and its two streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


def call(*argv: Any) -> CommandResult:
    """Run ``cordgt ARGV`` in this process. An exception that a person would see as a traceback fails the test."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
    before = sys.argv
    sys.argv = ["cordgt", *map(str, argv)]
    code = 0
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    finally:
        sys.argv = before
    return CommandResult(code, *(_written(stream) for stream in streams))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def works(*argv: Any) -> CommandResult:
    """`call`, for a command that must succeed."""
    result = call(*argv)
    assert result.code == 0, result.err
    return result


def fails(*argv: Any, containing: str | Iterable[str] = ()) -> CommandResult:
    """`call`, for a mistake of the user's: exit code 2, one message on standard error, no answer."""
    result = call(*argv)
    assert result.code == 2, (result.code, result.err, result.out)
    assert result.out == ""
    assert "Traceback" not in result.err
    assert len(re.findall(r"^(Error:|╭─ Error)", result.err, re.MULTILINE)) == 1, result.err
    for words in [containing] if isinstance(containing, str) else containing:
        assert words in result.err, result.err
    return result


def process(
    *argv: Any, extra: Mapping[str, str] | None = None, program: Sequence[str] = ("-m", "cordgt"), **options: Any
) -> subprocess.Popen[str]:
    """``python -m cordgt ARGV`` as a process of its own; ``extra`` in its environment."""
    command = [sys.executable, *program, *map(str, argv)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cordgt.__file__).parents[1])}
    environment |= extra or {}
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **(piped | options))


# -------------------- files

Event = tuple[int, int, int]


def events(n: int = 160, *, seed: int = 0, start: int = 1000, nodes: int = 12) -> list[Event]:
    """(source, destination, time) triples: repeated pairs, a few ties and self-loops, sorted by time."""
    draw = random.Random(seed)
    moment, found = start, []
    for _ in range(n):
        moment += draw.choice((0, 1, 3, 7))
        source = draw.randrange(nodes)
        found.append((source, (source + draw.choice((0, 1, 1, 2, 5))) % nodes, moment))
    return found


def write_rows(path: Path, rows: Iterable[Sequence[Any]], *, header: Sequence[str] = (), mark: str = ",") -> Path:
    """A delimited text file."""
    lines = [mark.join(map(str, row)) for row in ([header] if header else []) + list(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_events(path: Path, rows: Iterable[Sequence[Any]] | None = None) -> Path:
    """``src,dst,time`` as CSV."""
    return write_rows(path, events() if rows is None else rows, header=("src", "dst", "time"))


def rewrite_in_old_format(run: Path) -> Path:
    """Give a run format 2, which has a checksum in each tensor file and no other."""
    config = run / "config.toml"
    config.write_text(config.read_text().replace(f"format = {FORMAT}\n", "format = 2\n"))
    metrics = json.loads((run / "metrics.json").read_text())
    del metrics["checksums"]
    (run / "metrics.json").write_text(json.dumps(metrics))
    for path in run.glob("*.safetensors"):
        content = read_tensor_file(path)
        about = json.dumps(content.metadata)
        checksum = tensor_files._checksum(content.tensors, about, None)
        save_file(content.tensors, path, metadata={"about": about, "sha256": checksum})
    return run


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Nothing under the folder is made, changed or removed meanwhile."""
    before = contents(folder)
    yield
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
