"""Run mutated files through the readers, the run loader and the settings: what raises, what is read, what crashes.

    python tests/fuzz/fuzz.py --count 100000 --seed 0 --what all

Every input is made from (seed, target, number), so that any of them can be tried again: ``--what readers --only 1234``.
The inputs are tried in a process of their own, under a limit on memory; where it dies, the number it died at is a bug,
and a fresh one goes on after it. With ``$CORDGT_DATA`` the heads of real datasets are mutated too.
Exit code 1 where a bug was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fuzz.seeds import real_heads
from fuzz.targets import TARGETS, Fuzzer

SHARES = {"readers": 0.8, "runs": 0.1, "settings": 0.09, "stores": 0.01}  # of the inputs, if no target is named


def main() -> int:
    options = _options()
    if options.only is not None:
        return _one(options)
    if options.worker:
        return _work(options)
    counts: Counter[tuple[str, str]] = Counter()
    bugs: dict[tuple[str, ...], dict[str, Any]] = {}
    for what in TARGETS if options.what == "all" else (options.what,):
        share = SHARES[what] if options.what == "all" else 1.0
        _supervise(what, round(options.count * share), options, counts, bugs)
    _report(counts, bugs, options)
    return 1 if bugs else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--only", type=int, help="try one input of --what again, with its traceback")
    parser.add_argument("--seconds", type=float, default=10.0, help="longer than this is a hang")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of address space beyond what the imports take")
    parser.add_argument("--data", default=os.environ.get("CORDGT_DATA"), help="folder of real datasets")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


# -------------------- the worker process


def _limit_memory(gib: float) -> None:
    """Allow this much address space beyond the current use: torch alone maps several GiB."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(gib * 2**30),) * 2)


def _work(options: argparse.Namespace) -> int:
    """Try the inputs from ``--start`` to ``--count``; print a line of JSON now and then, and for every bug."""
    warnings.simplefilter("error", RuntimeWarning)
    fuzzer = Fuzzer(real_heads(options.data))
    fuzzer.target(options.what)
    _limit_memory(options.memory)
    counts: Counter[str] = Counter()
    here = fuzzer.folder / "number"
    print(json.dumps({"folder": str(fuzzer.folder)}), flush=True)
    last = time.monotonic()
    for number in range(options.start, options.count):
        here.write_text(str(number))
        faulthandler.dump_traceback_later(3 * options.seconds, exit=True)  # for what no alarm can interrupt
        outcome = fuzzer.try_one(options.what, options.seed, number, options.seconds)
        faulthandler.cancel_dump_traceback_later()
        counts[outcome.kind] += 1
        if outcome.is_bug:
            print(json.dumps({"bug": [outcome.kind, outcome.where, outcome.detail, number]}), flush=True)
        if time.monotonic() - last > 1 or number + 1 == options.count:
            print(json.dumps({"counts": counts, "next": number + 1}), flush=True)
            counts.clear()
            last = time.monotonic()
    fuzzer.close()
    return 0


def _one(options: argparse.Namespace) -> int:
    import random

    fuzzer = Fuzzer(real_heads(options.data))
    attempt = fuzzer.target(options.what).prepare(random.Random(f"{options.seed}/{options.what}/{options.only}"))
    for path in sorted(fuzzer.folder.glob(f"{options.what}/*")):
        if path.is_file():
            print(f"--- {path.name}: {path.read_bytes()[:1500]!r}")
    try:
        print(attempt())
    finally:
        fuzzer.close()
    return 0


# -------------------- the supervising process


def _supervise(what: str, count: int, options: argparse.Namespace, counts: Counter[Any], bugs: dict[Any, Any]) -> None:
    start, begun = 0, time.monotonic()
    while start < count:
        command = [sys.executable, __file__, "--worker", "--what", what, "--start", str(start), "--count", str(count)]
        for key in ("seed", "seconds", "memory", "data"):
            if getattr(options, key) is not None:
                command += [f"--{key}", str(getattr(options, key))]
        folder = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None and worker.stderr is not None
            for line in worker.stdout:
                message = json.loads(line)
                folder = message.get("folder", folder)
                if "bug" in message:
                    _note(bugs, what, *message["bug"])
                if "counts" in message:
                    counts.update({(what, kind): n for kind, n in message["counts"].items()})
                    start = message["next"]
                    rate = start / max(time.monotonic() - begun, 1e-9)
                    print(f"\r{what}: {start} of {count}, {rate:.0f} a second, {len(bugs)} bugs ", end="", flush=True)
            trouble = worker.stderr.read()
        if start < count:
            died = int((Path(folder) / "number").read_text()) if folder else start
            _note(bugs, what, f"BUG: died ({worker.returncode})", _last_frame(trouble), trouble[-300:], died)
            counts[what, f"BUG: died ({worker.returncode})"] += 1
            counts[what, "tried, class lost when the process died"] += died - start
            start = died + 1
    print()


def _last_frame(trouble: str) -> str:
    frames = [line.strip() for line in trouble.splitlines() if "cordgt/" in line]
    return frames[0] if frames else ""


def _note(bugs: dict[Any, Any], what: str, kind: str, where: str, detail: str, number: int) -> None:
    if (what, kind, where) not in bugs:
        print(f"\n{kind} in {where or what}: --what {what} --only {number}: {detail}", flush=True)
    bug = bugs.setdefault((what, kind, where), {"count": 0, "detail": detail, "number": number})
    bug["count"] += 1


def _report(counts: Counter[Any], bugs: dict[Any, Any], options: argparse.Namespace) -> None:
    print(f"\n{sum(counts.values())} mutated inputs (seed {options.seed})\n")
    print(f"{'target':<10}{'outcome':<48}{'inputs':>9}")
    for (what, kind), n in sorted(counts.items(), key=lambda item: (item[0][0], "BUG" in item[0][1], -item[1])):
        print(f"{what:<10}{kind:<48}{n:>9}")
    print(f"\n{len(bugs)} {'bug' if len(bugs) == 1 else 'bugs'}")
    for (what, kind, where), bug in sorted(bugs.items(), key=lambda item: -item[1]["count"]):
        print(
            f"- {kind} in {where or what}, {bug['count']} times; --what {what} --only {bug['number']}: {bug['detail']}"
        )


if __name__ == "__main__":
    sys.exit(main())
