"""Kill a live service under load with SIGKILL, start it again, and check that nothing acknowledged is lost.

    python tests/survival/service.py --kills 20

In every round several clients send events and ask questions; every third round a client also swaps the model to and
fro. After the kill the service starts again. Every acknowledged request must be there exactly once, and the answers of
all rounds must replay: the same ranking, scores within 1e-5. At the end the log is damaged in three ways. The service
must refuse to start, unless no event is lost. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.helpers import works, write_events
from tests.e2e.kill_rounds import check_after_kill, kill_round
from tests.e2e.live_service import LiveService

ANSWERS_PER_ROUND = 50


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    sent, keys, answers = dict[str, Any](), dict[str, int](), list[Any]()
    with tempfile.TemporaryDirectory() as folder:
        runs = train_two(Path(folder))
        data = Path(folder) / "service"
        server = LiveService(runs[0], data)
        for number in range(1, chosen.kills + 1):
            swap_to = runs if number % 3 == 0 else None
            acknowledged = kill_round(server, sent, rng, rng.uniform(0.2, 2.0), swap_to)
            keys |= acknowledged["events"]
            answers += acknowledged["answers"][:ANSWERS_PER_ROUND]
            start = time.perf_counter()
            server = LiveService(runs[0], data)
            seconds = time.perf_counter() - start
            check_after_kill(server, sent, keys, answers)
            print(
                f"{number:3}  {len(acknowledged['events']):5} requests acknowledged, started in {seconds:.1f} s, "
                f"{len(keys):,} requests and {len(answers):,} answers checked",
                flush=True,
            )
        cut = server.client().get("/health/ready")[1]["cut"]
        server.kill()
        problems = damage(runs[0], data, cut)
    print(f"{chosen.kills} kills: nothing lost. Damaged logs that lost events: {problems or 'none'}")
    sys.exit(1 if problems else 0)


def train_two(folder: Path) -> list[Path]:
    """Train two small runs on the same events."""
    data = write_events(folder / "data.csv")
    for hidden in (4, 8):
        out = folder / f"run-{hidden}"
        works("train", data, "--model", "counts", "--set", "epochs=1", "--set", f"hidden={hidden}", "--out", out)
    return [folder / "run-4", folder / "run-8"]


def damage(run: Path, data: Path, cut: int) -> list[str]:
    """Damage copies of a data folder; return the kinds of damage by which a service lost events without a word."""
    problems = []
    for kind in ("write-ahead log", "end of the database", "middle of the database"):
        copy = data.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(data, copy)
        file = copy / ("events.sqlite-wal" if "ahead" in kind else "events.sqlite")
        content = bytearray(file.read_bytes())
        if "ahead" in kind:  # some of it may be in the database already; then nothing is lost
            content[32:] = b"\0" * (len(content) - 32)
        elif "end" in kind:
            content = content[: len(content) // 2]
        else:
            middle = len(content) // 2
            content[middle : middle + 5000] = b"\0" * 5000
        file.write_bytes(content)
        try:
            server = LiveService(run, copy)
            found = server.client().get("/health/ready")[1]["cut"]
            server.kill()
            print(f"{kind}: started with {found:,} of {cut:,} events")
            problems += [kind] if found < cut else []
        except RuntimeError as error:
            print(f"{kind}: {str(error).splitlines()[-1]}")
    return problems


if __name__ == "__main__":
    main()
