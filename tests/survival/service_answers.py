"""Compare the answers of a live service with those of the commands on a file of the first ``cut`` events.

    python tests/survival/service_answers.py --questions 1000

Questions are asked from several threads while events arrive. Each answer names its ``cut``. A run whose history is a
file of the first ``cut`` events must give the same ranking, with scores within 1e-5. Some of the answers are also
compared with the commands ``cordgt recommend`` and ``cordgt predict``. At the end the service is killed and started
again, and every answer must replay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.helpers import events, works, write_rows
from tests.e2e.service_answers import HEADER, check_answers, check_replays

N_BASE, N_NODES = 500, 40


def main() -> None:
    """Ask, compare and replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--events", type=int, default=5000, help="events that arrive meanwhile")
    parser.add_argument("--commands", type=int, default=10, help="answers to compare with the commands")
    parser.add_argument("--model", default="counts")
    chosen = parser.parse_args()
    rows = events(N_BASE + chosen.events, nodes=N_NODES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_rows(folder / "base.csv", rows[:N_BASE], header=HEADER)
        works("train", base, "--model", chosen.model, "--set", "epochs=1", "--no-report", "--out", folder / "run")
        data = folder / "service"
        answers = check_answers(folder / "run", data, rows, N_BASE, chosen.questions, chosen.commands)
        n_cuts = len({answer["cut"] for answer in answers})
        print(f"{len(answers):,} answers at {n_cuts:,} different cuts equal those of the run", flush=True)
        check_replays(folder / "run", data, answers)
        print(f"{len(answers):,} answers replayed after a kill")


if __name__ == "__main__":
    main()
