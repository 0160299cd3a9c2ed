"""Coverage-guided rounds over the readers: atheris mutates, guided by which lines of ours are reached.

    pip install atheris
    CORDGT_FUZZ=events python tests/fuzz/atheris_readers.py CORPUS -max_total_time=300 -max_len=4096

``$CORDGT_FUZZ`` is events, pairs, ids, nodes, npy or settings. CORPUS is a folder that fills with what was found; an
empty one is given the seeds first. A bug ends the round and leaves its input in ``crash-*``.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
with atheris.instrument_imports(include=["cordgt"], enable_loader_override=False):
    from fuzz import seeds
    from fuzz.targets import _TRY, Readers, SettingsFiles, run_attempt

WHAT = os.environ.get("CORDGT_FUZZ", "events")
FOLDER = Path(tempfile.mkdtemp(prefix="cordgt-atheris-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
READERS, SETTINGS = Readers(FOLDER), SettingsFiles()


def try_one(data: bytes) -> None:
    if WHAT == "settings":
        outcome = run_attempt(lambda: SETTINGS._file(data), 10)
    else:
        path = FOLDER / "input"
        path.write_bytes(data)
        target = "nodes" if WHAT == "npy" else WHAT
        outcome = run_attempt(lambda: _TRY[target](random.Random(zlib.crc32(data)), path, data, READERS), 10)
    if outcome.is_bug:
        raise RuntimeError(f"{outcome.kind} in {outcome.where}: {outcome.detail}")


def give_seeds(corpus: Path) -> None:
    corpus.mkdir(parents=True, exist_ok=True)
    if any(corpus.iterdir()):
        return
    given: dict[str, Any] = {
        "events": [*seeds.EVENTS.values(), *seeds.parquet_events().values()],
        "npy": READERS.npy,
        "settings": SETTINGS.pool,
    }
    for number, data in enumerate(given.get(WHAT) or READERS.texts[WHAT]):
        (corpus / f"seed-{number}").write_bytes(data)


if __name__ == "__main__":
    for folder in [k for k in sys.argv[1:] if not k.startswith("-")]:
        give_seeds(Path(folder))
    atheris.Setup(sys.argv, try_one)
    atheris.Fuzz()
