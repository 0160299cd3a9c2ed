"""Kill a training at random moments, resume it to its end, and compare with a training that nobody disturbed.

    python tests/survival/kills.py --kills 50

Every training is a process of its own, forked from one that has imported everything and run nothing. A round starts
one, ends it with SIGKILL, in some rounds does so again to the process that resumes, and lets the last one finish.
Weights are compared bit for bit, figures and the history of the losses exactly; only timings may differ. Exit code 1
where an ending is another one. ``--in-a-row``: all kills in one round.

A kill may be aimed: it then waits from a random moment until the process trains, validates or writes a checkpoint.

``--processes N``: up to N processes share each training, a new number whenever it is resumed. One of them is killed;
the others end by themselves, or when they are asked to, as `launch` and torchrun do. The end must be that of one.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
SOON = 10.0  # seconds for the processes of a training to notice that one was killed
AIMS = ("anything", "epoch", "validating", "writing state")  # in turn
SETTINGS = {
    "fanout": "3,2", "hidden": 8, "heads": 2, "layers": 1, "td_dim": 8, "sd_dim": 8, "dropout": 0.2,
    "epochs": 4, "patience": 4, "min_delta": 0, "batch_size": 25, "lr": 0.01,
    "micro_batches": 4,  # the same bits with any number of processes
    "checkpoint_minutes": 0.0005,  # every 30 ms, so that epochs are cut in two as well
}  # fmt: skip


# -------------------- in the process that is killed


def child(board: Path, argv: list[str]) -> None:
    """Train as the command line does, and keep writing on ``board`` what is going on."""
    from cordgt import cli
    from cordgt.cli import console
    from cordgt.training import run_folder

    with open(board, "r+b") as file:
        shown = mmap.mmap(file.fileno(), 0)  # what stands here outlives the process

    def show(what: str) -> None:
        shown[:] = what.encode().ljust(len(shown))

    def tells(owner: Any, name: str, say: Any) -> None:
        inner = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            show(say(*arguments))
            return inner(*arguments, **options)

        setattr(owner, name, call)

    @contextmanager
    def writing(what: str) -> Iterator[None]:
        before = bytes(shown).decode().strip()
        show(f"writing {what}, {before}")
        yield
        show(before)

    write = run_folder.write_bytes

    def write_and_tell(path: Path, content: Any) -> None:
        with writing(Path(path).name):
            write(path, content)

    run_folder.write_bytes = write_and_tell
    tells(console.ProgressBar, "on_stage_start", lambda _, name, total: name)
    show("starting")
    sys.argv = ["cordgt", *argv]
    cli.main()


# -------------------- in the process that kills


class Training:
    """A training in a process of its own, or in several, and what the first of them last said it was doing."""

    def __init__(self, data: Path, run: Path, *, resume: bool = False, processes: int = 1) -> None:
        self.board = run.with_suffix(".board")
        self.board.write_bytes(b" " * 120)
        options = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        command = ["train", str(data), *options, "--refit", "--device", "cpu", "--out", str(run)]
        command += ["--resume"] * resume
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.meeting = tempfile.TemporaryDirectory()
        start = multiprocessing.get_context("fork").Process
        self.processes = [start(target=self._train, args=(command, rank, processes)) for rank in range(processes)]
        for process in self.processes:
            process.start()

    def _train(self, command: list[str], rank: int, processes: int) -> None:
        for stream in (1, 2):
            os.dup2(self.log.fileno(), stream)
        if processes > 1:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "GLOO_SOCKET_IFNAME": "lo"}
            os.environ["CORDGT_MEETING"] = f"{self.meeting.name}/meeting"
        child(self.board if rank == 0 else _unread(self.board), command)

    @property
    def process(self) -> Any:
        """The first one, which speaks and writes."""
        return self.processes[0]

    @property
    def doing(self) -> str:
        return self.board.read_bytes().decode().strip()

    def wait_until(self, word: str, seconds: float = 60.0) -> bool:
        """Whether it came to do that before it ended."""
        end = time.monotonic() + seconds
        while self.process.is_alive() and time.monotonic() < end:
            if word in self.doing:
                return True
            time.sleep(0.0003)
        return False

    def kill_after(self, delay: float, aim: str, rank: int = 0) -> str | None:
        """What it was doing when one of its processes was killed; None where that had ended before."""
        self.wait_until("starting")
        time.sleep(delay)
        if aim != "anything":
            self.wait_until(aim)
        self.processes[rank].kill()
        for process in self.processes:
            process.join(SOON)
            if process.exitcode is None:  # still waiting to meet one that will not come
                process.terminate()
                process.join(SOON)
            if process.exitcode is None:
                raise SystemExit(f"One was killed, and the others go on:\n{self._said()}")
        self.meeting.cleanup()
        return self.doing if self.processes[rank].exitcode == -9 else None

    def _said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def finish(self) -> float:
        """Seconds from when it was ready to its end, which must be a good one."""
        self.wait_until("starting")
        began = time.monotonic()
        for process in self.processes:
            process.join(300)
            if process.exitcode != 0:
                raise SystemExit(f"A training failed:\n{self._said()}")
        self.meeting.cleanup()
        return time.monotonic() - began


def _unread(board: Path) -> Path:
    """A board that nobody reads."""
    other = board.with_name(f"{board.name}.{os.getpid()}")
    other.write_bytes(b" " * 120)
    return other


def ending(run: Path) -> dict[str, Any]:
    """All that must be the same: weights to the bit, figures, losses. Timings and memory are left out."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(run.glob("*.safetensors")):
        found |= {f"{path.name} {k}": v.numpy().tobytes() for k, v in load_file(path).items()}
    metrics = json.loads((run / "metrics.json").read_text())
    found |= {k: v for k, v in metrics.items() if k not in ("seconds_per_epoch", "peak_memory_mb", "processes")}
    records = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    found["history"] = [
        {k: v for k, v in record.items() if not k.endswith("seconds")} for record in records if "events" not in record
    ]
    found["files"] = sorted(p.name for p in run.iterdir())
    return found


def write_events(path: Path, n: int = 300) -> Path:
    draw, moment, rows = random.Random(0), 0, []
    for _ in range(n):
        moment += draw.choice((0, 1, 3, 7))
        source = draw.randrange(12)
        rows.append(f"{source},{(source + draw.choice((0, 1, 1, 2, 5))) % 12},{moment}")
    path.write_text("\n".join(["src,dst,time", *rows]) + "\n")
    return path


def one_round(data: Path, run: Path, whole: float, draw: random.Random, aims: list[str], processes: int) -> list[str]:
    """Kill as often as there are aims, perhaps once more, and finish; what it was doing each time."""
    killed: list[str] = []

    def kill(longest: float, aim: str) -> list[str]:
        n = draw.randint(min(2, processes), processes)
        delay, rank = draw.uniform(0, longest), draw.randrange(n)
        doing = Training(data, run, resume=True, processes=n).kill_after(delay, aim, rank)
        told = f" ({rank} of {n} processes)" if n > 1 else ""
        return [] if doing is None else [f"{doing}{told}"]

    while len(killed) < len(aims):
        if (run / "metrics.json").exists():  # too late: once more from the start
            shutil.rmtree(run)
            killed.clear()
        killed += kill(whole / len(aims), aims[len(killed)])
    if draw.random() < 0.25:
        killed += kill(whole, "anything")
    Training(data, run, resume=True, processes=draw.randint(1, processes)).finish()
    return killed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=50, help="rounds, of at least one kill each")
    options.add_argument("--seed", type=int, default=0, help="of the moments")
    options.add_argument("--in-a-row", action="store_true", help="all kills in one round: a short test")
    options.add_argument("--processes", type=int, default=1, help="that share a training, at most")
    chosen = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(SOURCE))
    import sklearn.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401  # Adam imports it, and it takes longer than the training

    from cordgt.cli import writers  # noqa: F401
    from cordgt.workflows import train  # noqa: F401

    aims = [AIMS[number % len(AIMS)] for number in range(1, chosen.kills + 1)]
    rounds = [aims] if chosen.in_a_row else [[aim] for aim in aims]
    draw, where, same, kills = random.Random(chosen.seed), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        data = write_events(Path(folder) / "events.csv")
        if not chosen.in_a_row:
            Training(data, Path(folder) / "warm-up").finish()  # compiles, where nothing is compiled yet
        whole = Training(data, Path(folder) / "whole").finish()
        expected = ending(Path(folder) / "whole")
        print(f"undisturbed: {whole:.1f} s, {len(expected['history'])} epochs", flush=True)
        for number, aims in enumerate(rounds, 1):
            run = Path(folder) / f"run-{number}"
            killed = one_round(data, run, whole, draw, aims, chosen.processes)
            found = ending(run)
            differing = [k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k)]
            same, kills = same + (not differing), kills + len(killed)
            where.update(doing.split(" (")[0].split(",")[0].split(":")[0] for doing in killed)
            told = "identical" if not differing else f"DIFFERENT: {', '.join(sorted(differing)[:5])}"
            print(f"{number:3}  {told}  killed while {'; then while '.join(killed)}", flush=True)
            shutil.rmtree(run)
    print(", ".join(f"{what} {n}" for what, n in where.most_common()))
    print(f"{len(rounds)} rounds, {kills} kills: {same} identical endings")
    sys.exit(0 if same == len(rounds) else 1)


if __name__ == "__main__":
    main()
