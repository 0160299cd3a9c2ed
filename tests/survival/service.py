"""Kill a live service under load with SIGKILL, start it again, and check that nothing acknowledged is lost.

    python tests/survival/service.py --kills 20

In every round several clients send events and ask questions. In some rounds the service is killed from outside at a
random moment. In the others it kills itself at a chosen point: between commit and acknowledgement, during compaction,
during a hot swap, while a checkpoint is written. Then the service starts again. Clients repeat what got no answer.
Every request must be there exactly once, and earlier answers must replay: the same ranking, scores within 1e-5. At the
end the log is damaged in three ways. The service must refuse to start, unless no event is lost. The exit code is 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.crashing_service import POINTS
from tests.e2e.helpers import works, write_events
from tests.e2e.kill_rounds import ClientLog, check_after_kill, crash_program, kill_round
from tests.e2e.live_service import LiveService

FROM_OUTSIDE = "at a random moment"
N_BASE = 160  # events of `write_events`
ANSWERS_PER_ROUND = 60
CHECKED_PER_ROUND = 100  # requests and answers; the last round checks all


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng, log, kills = random.Random(chosen.seed), ClientLog(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        runs = train_two(Path(folder))
        data, marker = Path(folder) / "service", Path(folder) / "marker"
        points = [FROM_OUTSIDE, *POINTS]
        server = LiveService(runs[0], data)
        for number in range(1, chosen.kills + 1):
            point = points[(number - 1) % len(points)]
            if point != FROM_OUTSIDE:
                server.kill()
                program = crash_program(
                    point, marker, rng.randint(1, 3) if "commit" not in point else rng.randint(2, 40)
                )
                server = LiveService(runs[0], data, program=program)
            swap_to = runs if "swap" in point or number % 3 == 0 else ()
            seconds = rng.uniform(0.5, 2.0) if point == FROM_OUTSIDE else None
            kill_round(server, log, rng, seconds, swap_to, ANSWERS_PER_ROUND)
            kills[point if point == FROM_OUTSIDE else marker.read_text()] += 1
            marker.unlink(missing_ok=True)
            start = time.perf_counter()
            server = LiveService(runs[0], data)
            seconds = time.perf_counter() - start
            check_after_kill(server, log, N_BASE, rng, None if number == chosen.kills else CHECKED_PER_ROUND)
            print(
                f"{number:3}  {point:40} started in {seconds:4.1f} s, {len(log.acknowledged):5,} requests, "
                f"{log.n_committed_without_answer:3} of them committed without an answer, {len(log.answers):,} answers",
                flush=True,
            )
        cut = server.client().get("/health/ready")[1]["cut"]
        server.kill()
        problems = damage(runs[0], data, cut)
    for point, n in kills.items():
        print(f"{n:3} kills {point}")
    print(
        f"{chosen.kills} kills: all {log.n_events:,} events of {len(log.acknowledged):,} requests are there exactly "
        f"once ({log.n_retried} repeated by clients), and {len(log.answers):,} answers replay."
    )
    print(f"Damaged logs that lost events: {problems or 'none'}")
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
