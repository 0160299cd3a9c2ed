"""Edit run folders systematically and run every command on them.

    python tests/fuzz/run_edits.py              # every edit, a few thousand commands
    python tests/fuzz/run_edits.py --only NAME  # one edit, with its output

Each command must refuse the edited run with one error and exit code 2, or give the answer of the original run. It must
not print a traceback, hang, crash, or change a file outside the run folder. Runs of an old format have no checksums, so
there a changed value may give another answer, but the command must say that the format is old.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from e2e.helpers import TINY, CommandResult, call, contents, rewrite_in_old_format, works, write_events, write_rows

import cordgt
from cordgt.callbacks import Callback
from cordgt.training.settings import parse_assignments
from cordgt.training.tensor_files import read_tensor_file
from fuzz.targets import Hang, alarm

SECONDS = 60.0  # longer than this is a hang
Apply = Callable[[Path, Path], None]  # changes the run folder (first); the second is another run of the same shape


@contextmanager
def raw_stderr() -> Iterator[list[str]]:
    """Catch what is written to file descriptor 2 itself, as the message that memory ran out; a list with the text."""
    text: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text.append(file.read().decode("utf-8", "replace"))


@dataclass(frozen=True)
class Edit:
    """One change of a run folder."""

    name: str
    apply: Apply
    base: str = "finished"  # or "interrupted", "old" (format 2), "store" (trained on a store)


@dataclass(frozen=True)
class Outcome:
    """What a command did with an edited run: ``same``, ``refused``, ``old format``, or a bug."""

    kind: str
    detail: str = ""

    @property
    def is_bug(self) -> bool:
        return self.kind.startswith("BUG")


# -------------------- edits of whole files


def _truncate(share: float) -> Callable[[Path, Path], None]:
    def apply(path: Path, other: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return apply


def _extend(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + b'\n{"epoch": "x"}\n')


def _flip(share: float) -> Callable[[Path, Path], None]:
    def apply(path: Path, other: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int((len(data) - 1) * share)] ^= 0x11
        path.write_bytes(bytes(data))

    return apply


def _replace(make: Callable[[Path], None]) -> Callable[[Path, Path], None]:
    def apply(path: Path, other: Path) -> None:
        path.unlink()
        make(path)

    return apply


def _bind_socket(path: Path) -> None:
    server, here = socket.socket(socket.AF_UNIX), Path.cwd()
    try:
        os.chdir(path.parent)  # the path of a socket has at most 107 characters
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


def _link_outside(path: Path, other: Path) -> None:
    """Replace the file by a link to a file outside with the same content."""
    target = path.parent.parent / "outside" / path.name
    shutil.copyfile(path, target)
    path.unlink()
    path.symlink_to(target)


def _take_other(path: Path, other: Path) -> None:
    if (other / path.name).exists():
        shutil.copyfile(other / path.name, path)


FILE_EDITS: dict[str, Callable[[Path, Path], None]] = {
    "missing": lambda path, other: path.unlink(),
    "empty": _truncate(0.0),
    "half": _truncate(0.5),
    "shorter": _truncate(0.99),
    "longer": _extend,
    "flipped-first": _flip(0.0),
    "flipped-middle": _flip(0.5),
    "flipped-last": _flip(1.0),
    "folder": _replace(Path.mkdir),
    "pipe": _replace(os.mkfifo),
    "socket": _replace(_bind_socket),
    "zeros": _replace(lambda path: path.symlink_to("/dev/zero")),
    "dangling": _replace(lambda path: path.symlink_to("nowhere")),
    "link": _link_outside,
    "other": _take_other,
    "garbage": lambda path, other: path.write_bytes(bytes(range(256)) * 8),
}
FINISHED_FILES = (
    "config.toml",
    "metrics.json",
    "history.jsonl",
    "events.parquet",
    "nodes.parquet",
    "model.safetensors",
    "refit.safetensors",
    "report.html",
)
INTERRUPTED_FILES = ("config.toml", "history.jsonl", "events.parquet", "model.safetensors", "state.safetensors")


def file_edits() -> Iterator[Edit]:
    """Every file, replaced or damaged in every way."""
    files = {"finished": FINISHED_FILES, "interrupted": INTERRUPTED_FILES, "old": FINISHED_FILES}
    for base, names in {**files, "store": ("events.json",)}.items():
        for name in names:
            for how, change in FILE_EDITS.items():
                yield Edit(f"{base}/{name}/{how}", _on_file(name, change), base)


def _on_file(name: str, change: Apply) -> Apply:
    return lambda run, other: change(run / name, other)


# -------------------- edits of keys

JSON_VALUES: dict[str, str] = {
    "text": '"x"',
    "list": "[]",
    "object": "{}",
    "null": "null",
    "true": "true",
    "negative": "-1",
    "fraction": "0.123",
    "huge": "1" + "0" * 30,
    "infinite": "1e999",
    "nan": "NaN",
    "digits": "9" * 5000,
    "deep": "[" * 3000 + "]" * 3000,
    "path": '"../../outside/secret"',
    "escape": '"\\u001b[31m\\u202e"',
}
TOML_VALUES: dict[str, str] = {
    "text": '"x"',
    "list": "[]",
    "negative": "-1",
    "huge": "100000000000",
    "larger": "9223372036854775807",
    "nan": "nan",
    "deep": "[" * 300 + "]" * 300,
    "path": '"../../outside/secret"',
}
_MARK = "a6b1c3"


def _json_paths(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*prefix, key)
        if isinstance(inner, dict):
            yield from _json_paths(inner, (*prefix, key))


def _set_json(path: Path, keys: tuple[str, ...], text: str | None) -> None:
    """Set the value of a key to JSON text, or remove the key, in every line that has it."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    edited = []
    for line in lines:
        table = whole = json.loads(line)
        for key in keys[:-1]:
            table = table.get(key, {})
        if keys[-1] in table:
            if text is None:
                del table[keys[-1]]
            else:
                table[keys[-1]] = _MARK
        edited.append(json.dumps(whole).replace(f'"{_MARK}"', text or ""))
    path.write_text("\n".join(edited) + "\n")


def key_edits(run: Path) -> Iterator[Edit]:
    """Every key of config.toml, metrics.json and history.jsonl of a run, removed or with another value."""
    metrics = json.loads((run / "metrics.json").read_text())
    record = json.loads((run / "history.jsonl").read_text().splitlines()[0])
    for key in ("store", "relative"):
        for how, text in {"removed": None, "null-byte": '"a\\u0000b"', **JSON_VALUES}.items():
            yield Edit(f"store/events.json/{key}/{how}", _json_edit("events.json", (key,), text), "store")
    for base in ("finished", "old"):
        for name, table in (("metrics.json", metrics), ("history.jsonl", record)):
            for keys in _json_paths(table):
                if (base == "old" and keys[0] == "checksums") or (len(keys) > 3 and keys[1] != "popularity"):
                    continue  # baselines are alike
                for how, text in {"removed": None, **JSON_VALUES}.items():
                    yield Edit(f"{base}/{name}/{'.'.join(keys)}/{how}", _json_edit(name, keys, text), base)
        for line in re.findall(r"^(\w+) = ", (run / "config.toml").read_text(), re.MULTILINE):
            for how, text in {"removed": None, **TOML_VALUES}.items():
                yield Edit(f"{base}/config.toml/{line}/{how}", _toml_edit(line, text), base)


def _json_edit(name: str, keys: tuple[str, ...], text: str | None) -> Apply:
    return lambda run, other: _set_json(run / name, keys, text)


def _toml_edit(key: str, text: str | None) -> Apply:
    def apply(run: Path, other: Path) -> None:
        path = run / "config.toml"
        line = "" if text is None else f"{key} = {text}\n"
        path.write_text(re.sub(rf"^{key} = .*\n", line, path.read_text(), flags=re.MULTILINE))

    return apply


# -------------------- commands


class _Interrupt(Callback):
    def on_epoch_end(self, record: dict[str, Any]) -> None:
        raise InterruptedError


class RunEdits:
    """Runs to edit, what the commands answer about them, and what they answer about an edited copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_events(folder / "d.csv")
        self.pairs = write_rows(folder / "pairs.csv", [(1, 2), (3, 4)], header=("src", "dst"))
        self.train = ["train", self.data, *TINY, "--set", "epochs=2"]
        for seed, name in ((0, "finished"), (1, "other")):
            works(*self.train, "--seed", seed, "--refit", "--out", folder / name)
        settings = {**parse_assignments([word for word in TINY if word != "--set"]), "epochs": 2}
        try:
            stream = cordgt.read_events(self.data)
            columns: dict[str, str] = {}
            cordgt.train(
                stream, out=folder / "interrupted", device="cpu", columns=columns, callbacks=_Interrupt(), **settings
            )
        except InterruptedError:
            pass
        rewrite_in_old_format(shutil.copytree(folder / "finished", folder / "old"))
        works("data", "convert", self.data, folder / "d.store")
        works("train", folder / "d.store", *self.train[2:], "--refit", "--out", folder / "store")
        self.outside = folder / "work" / "outside"
        self.answers = {base: self._run_commands(base, None) for base in ("finished", "interrupted", "old", "store")}

    def commands(self, base: str, run: Path) -> dict[str, list[Any]]:
        if base == "interrupted":
            return {"train --resume": [*self.train, "--out", run, "--resume", "--json"]}
        return {
            "recommend": ["recommend", run, "--source", 3],
            "predict": ["predict", run, "--pairs", self.pairs],
            "embed": ["embed", run, "--output", run.parent / "vectors.csv"],
            "compare": ["compare", run, self.folder / "other", "--bootstrap", 20, "--json"],
            "report": ["report", run, "--output", run.parent / "report.html"],
            "audit": ["audit", run, "--queries", 5, "--json"],
            "train --resume": [
                *("train", self.folder / "d.store" if base == "store" else self.data, *self.train[2:]),
                *("--out", run, "--refit", "--resume", "--json"),
            ],
        }

    def _run_commands(
        self, base: str, edit: Edit | None, only: tuple[str, ...] = ()
    ) -> dict[str, tuple[CommandResult, str]]:
        """Run each command on an edited copy of a run; return its result and its answer."""
        results = {}
        for command in self.commands(base, self.folder):
            if only and command not in only:
                continue
            shutil.rmtree(self.folder / "work", ignore_errors=True)
            self.outside.mkdir(parents=True)
            (self.outside / "secret").write_text("outside")
            run = Path(shutil.copytree(self.folder / base, self.folder / "work" / "run"))
            if edit is not None:
                edit.apply(run, self.folder / "other")
            before = contents(self.outside)
            argv = self.commands(base, run)[command]
            try:
                with alarm(SECONDS), raw_stderr() as raw:
                    result = call(*argv)
                result = replace(result, err=result.err + raw[0])
            except Hang:
                result = CommandResult(-1, "", "hang")
            except Exception as error:  # a person would see a traceback
                result = CommandResult(-2, "", f"Traceback {type(error).__name__}: {error}")
            if contents(self.outside) != before:
                result = CommandResult(-3, "", "a file outside was changed")
            results[command] = result, self._answer(base, result, run)
        return results

    def _answer(self, base: str, result: CommandResult, run: Path) -> str:
        """Return what the command answered, without times that differ between two trainings."""
        written = [run.parent / name for name in ("vectors.csv", "report.html")]
        text = result.out + "".join(path.read_text() for path in written if path.exists())
        if base == "interrupted" and result.code == 0:
            metrics = json.loads((run / "metrics.json").read_text())
            weights = read_tensor_file(run / "model.safetensors").tensors
            text = json.dumps({k: metrics[k] for k in ("validation", "test", "epochs")})
            text += "".join(str(weights[k].tolist()) for k in sorted(weights))
        return text

    def try_edit(self, edit: Edit, only: tuple[str, ...] = ()) -> dict[str, Outcome]:
        """Return the outcome of each command on an edited run."""
        outcomes = {}
        for command, (result, answer) in self._run_commands(edit.base, edit, only).items():
            outcomes[command] = self._judge(edit, result, answer, self.answers[edit.base][command][1])
        return outcomes

    def _judge(self, edit: Edit, result: CommandResult, answer: str, original: str) -> Outcome:
        if result.code < 0 or "Traceback" in result.err:
            return Outcome("BUG: traceback, hang or change outside", result.err)
        if result.code == 2:
            is_one_error = len(re.findall(r"^Error:", result.err, re.MULTILINE)) == 1 and len(result.err) < 3000
            return Outcome("refused") if is_one_error else Outcome("BUG: not one short error", result.err[:500])
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", result.err):
            return Outcome("BUG: control characters", repr(result.err[:500]))
        if result.code == 0 and answer == original:
            return Outcome("same answer")
        if result.code == 0 and edit.name.endswith("history.jsonl/missing"):
            return Outcome("says that the history is missing")
        if edit.base == "old" and "of an older version" in result.err:
            return Outcome("old format, with a note")
        return Outcome("BUG: another answer", f"exit code {result.code}: {result.err[:300]}")


def all_edits(runs: RunEdits) -> list[Edit]:
    return [*file_edits(), *key_edits(runs.folder / "finished")]


# -------------------- the command line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="part of the names of the edits")
    parser.add_argument("--every", type=int, default=1, help="try one edit of this many")
    parser.add_argument("--start", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start is not None:
        return _work(options)
    counts: Counter[str] = Counter()
    bugs, start, total = [], 0, None
    while total is None or start < total:  # a process that dies is a bug; another one continues after it
        command = [sys.executable, __file__, "--start", str(start), "--every", str(options.every)]
        command += ["--only", options.only] if options.only else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                message = json.loads(line)
                total = message["total"]
                for name, (kind, detail) in message.get("outcomes", {}).items():
                    counts[kind] += 1
                    if kind.startswith("BUG"):
                        bugs.append((message["edit"], name))
                        print(f"{message['edit']}, {name}: {kind}: {detail}", flush=True)
                start = message["next"]
        if worker.returncode:
            bugs.append((f"edit {start}", f"died ({worker.returncode})"))
            print(f"edit {start}: the process died ({worker.returncode})", flush=True)
            start += 1
            if total is None:
                return 1
    print(f"{total} edits, {sum(counts.values())} commands")
    for kind, n in counts.most_common():
        print(f"{kind:<44}{n:>7}")
    print(f"{len(bugs)} bugs")
    return 1 if bugs else 0


def _work(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        runs = RunEdits(Path(folder))
        edits = [e for e in all_edits(runs) if options.only is None or options.only in e.name][:: options.every]
        print(json.dumps({"total": len(edits), "next": options.start}), flush=True)
        for number, edit in enumerate(edits):
            if number >= options.start:
                outcomes = {name: (k.kind, k.detail) for name, k in runs.try_edit(edit).items()}
                message = {"total": len(edits), "next": number + 1, "edit": edit.name, "outcomes": outcomes}
                print(json.dumps(message), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
