"""Kill a training at random moments, resume it, and compare the result with that of an undisturbed training.

    python tests/survival/kills.py --kills 50

Every training runs in a process forked from one that has imported everything and computed nothing. A round starts a
training, kills it with SIGKILL, in some rounds kills the resumed process too, and lets the last one finish. Weights,
metrics and the loss history must be bit-identical; only timings may differ. The exit code is 1 if a result differs.
``--in-a-row``: all kills in one round.

A kill may have a target: after a random delay it waits until the process trains, validates or writes a checkpoint.

``--processes N``: up to N processes share each training, a new number after each resume. One of them is killed; the
others exit by themselves or on SIGTERM, as with `launch` and torchrun. The result must be that of one process.
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
EXIT_SECONDS = 10.0  # for the processes of a training to notice that one was killed
TARGETS = ("anything", "epoch", "validating", "writing state")  # in turn
SETTINGS = {
    "fanout": "3,2", "hidden": 8, "heads": 2, "layers": 1, "td_dim": 8, "sd_dim": 8, "dropout": 0.2,
    "epochs": 4, "patience": 4, "min_delta": 0, "batch_size": 25, "lr": 0.01,
    "micro_batches": 4,  # the same bits with any number of processes
    "checkpoint_minutes": 0.0005,  # every 30 ms, so that epochs are interrupted as well
}  # fmt: skip


# -------------------- in the process that is killed


def child(board: Path, argv: list[str]) -> None:
    """Train as the command line does, and write the current activity to the file ``board``."""
    from cordgt import cli
    from cordgt.cli import console
    from cordgt.training import run_folder

    with open(board, "r+b") as file:
        shown = mmap.mmap(file.fileno(), 0)  # survives the process

    def show(what: str) -> None:
        shown[:] = what.encode().ljust(len(shown))

    def report_calls(owner: Any, name: str, describe: Any) -> None:
        inner = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            show(describe(*arguments))
            return inner(*arguments, **options)

        setattr(owner, name, call)

    @contextmanager
    def writing(what: str) -> Iterator[None]:
        before = bytes(shown).decode().strip()
        show(f"writing {what}, {before}")
        yield
        show(before)

    write = run_folder.write_bytes

    def write_and_report(path: Path, content: Any) -> None:
        with writing(Path(path).name):
            write(path, content)

    run_folder.write_bytes = write_and_report
    report_calls(console.ProgressBar, "on_stage_start", lambda _, name, total: name)
    show("starting")
    sys.argv = ["cordgt", *argv]
    cli.main()


# -------------------- in the process that kills


class Training:
    """A training in one or several processes, and the current activity of the main process."""

    def __init__(self, data: Path, run: Path, *, resume: bool = False, processes: int = 1) -> None:
        self.board = run.with_suffix(".board")
        self.board.write_bytes(b" " * 120)
        options = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        command = ["train", str(data), *options, "--refit", "--device", "cpu", "--out", str(run)]
        if resume:
            command.append("--resume")
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.rendezvous = tempfile.TemporaryDirectory()
        start = multiprocessing.get_context("fork").Process
        self.processes = [start(target=self._train, args=(command, rank, processes)) for rank in range(processes)]
        for process in self.processes:
            process.start()

    def _train(self, command: list[str], rank: int, processes: int) -> None:
        for stream in (1, 2):
            os.dup2(self.log.fileno(), stream)
        if processes > 1:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "GLOO_SOCKET_IFNAME": "lo"}
            os.environ["CORDGT_RENDEZVOUS"] = f"{self.rendezvous.name}/file"
        child(self.board if rank == 0 else _unused_board(self.board), command)

    @property
    def process(self) -> Any:
        """The main process."""
        return self.processes[0]

    @property
    def activity(self) -> str:
        return self.board.read_bytes().decode().strip()

    def wait_until(self, word: str, seconds: float = 60.0) -> bool:
        """Return whether the activity contained ``word`` before the process ended."""
        end = time.monotonic() + seconds
        while self.process.is_alive() and time.monotonic() < end:
            if word in self.activity:
                return True
            time.sleep(0.0003)
        return False

    def kill_after(self, delay: float, target: str, rank: int = 0) -> str | None:
        """Kill one process and return the activity at that time; None if the process had ended before."""
        self.wait_until("starting")
        time.sleep(delay)
        if target != "anything":
            self.wait_until(target)
        self.processes[rank].kill()
        for process in self.processes:
            process.join(EXIT_SECONDS)
            if process.exitcode is None:  # still waiting for the killed process at the rendezvous
                process.terminate()
                process.join(EXIT_SECONDS)
            if process.exitcode is None:
                raise SystemExit(f"A process was killed, but the others continue:\n{self._output()}")
        self.rendezvous.cleanup()
        return self.activity if self.processes[rank].exitcode == -9 else None

    def _output(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def finish(self) -> float:
        """Wait until the training succeeds, and return its seconds without start-up."""
        self.wait_until("starting")
        began = time.monotonic()
        for process in self.processes:
            process.join(300)
            if process.exitcode != 0:
                raise SystemExit(f"A training failed:\n{self._output()}")
        self.rendezvous.cleanup()
        return time.monotonic() - began


def _unused_board(board: Path) -> Path:
    """Return a file for the activity of a process that is not the main one."""
    other = board.with_name(f"{board.name}.{os.getpid()}")
    other.write_bytes(b" " * 120)
    return other


def final_state(run: Path) -> dict[str, Any]:
    """Return weights (bit-exact), metrics and losses, without timings and memory."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(run.glob("*.safetensors")):
        found |= {f"{path.name} {k}": v.numpy().tobytes() for k, v in load_file(path).items()}
    metrics = json.loads((run / "metrics.json").read_text())
    found |= {
        k: v for k, v in metrics.items() if k not in ("checksums", "seconds_per_epoch", "peak_memory_mb", "processes")
    }
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


def one_round(
    data: Path, run: Path, whole: float, draw: random.Random, targets: list[str], processes: int
) -> list[str]:
    """Kill once per target, perhaps once more, then finish. Returns the activity at each kill."""
    killed: list[str] = []

    def kill(max_delay: float, target: str) -> list[str]:
        n = draw.randint(min(2, processes), processes)
        delay, rank = draw.uniform(0, max_delay), draw.randrange(n)
        activity = Training(data, run, resume=True, processes=n).kill_after(delay, target, rank)
        process = f" ({rank} of {n} processes)" if n > 1 else ""
        return [] if activity is None else [f"{activity}{process}"]

    while len(killed) < len(targets):
        if (run / "metrics.json").exists():  # finished too early: start again
            shutil.rmtree(run)
            killed.clear()
        killed += kill(whole / len(targets), targets[len(killed)])
    if draw.random() < 0.25:
        killed += kill(whole, "anything")
    Training(data, run, resume=True, processes=draw.randint(1, processes)).finish()
    return killed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=50, help="number of rounds, with at least one kill each")
    options.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    options.add_argument("--in-a-row", action="store_true", help="all kills in one round: a short test")
    options.add_argument("--processes", type=int, default=1, help="maximum number of processes of a training")
    chosen = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(SOURCE))
    import sklearn.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401  # Adam imports it, and it takes longer than the training

    from cordgt.cli import writers  # noqa: F401
    from cordgt.workflows import train  # noqa: F401

    targets = [TARGETS[number % len(TARGETS)] for number in range(1, chosen.kills + 1)]
    rounds = [targets] if chosen.in_a_row else [[target] for target in targets]
    draw, activities, same, kills = random.Random(chosen.seed), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        data = write_events(Path(folder) / "events.csv")
        if not chosen.in_a_row:
            Training(data, Path(folder) / "warm-up").finish()  # fills the compilation cache
        whole = Training(data, Path(folder) / "whole").finish()
        expected = final_state(Path(folder) / "whole")
        print(f"undisturbed: {whole:.1f} s, {len(expected['history'])} epochs", flush=True)
        for number, targets in enumerate(rounds, 1):
            run = Path(folder) / f"run-{number}"
            killed = one_round(data, run, whole, draw, targets, chosen.processes)
            found = final_state(run)
            differing = [k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k)]
            same, kills = same + (not differing), kills + len(killed)
            activities.update(k.split(" (")[0].split(",")[0].split(":")[0] for k in killed)
            verdict = "identical" if not differing else f"DIFFERENT: {', '.join(sorted(differing)[:5])}"
            print(f"{number:3}  {verdict}  killed while {'; then while '.join(killed)}", flush=True)
            shutil.rmtree(run)
    print(", ".join(f"{what} {n}" for what, n in activities.most_common()))
    print(f"{len(rounds)} rounds, {kills} kills: {same} identical results")
    sys.exit(0 if same == len(rounds) else 1)


if __name__ == "__main__":
    main()
