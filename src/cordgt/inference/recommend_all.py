"""Recommend destinations for every source of a run, in parts that any number of processes share.

The sources of the visible history, in order of first appearance, are divided into parts of equal size. A part is one
file. Every part is computed by one thread in the same batches, so its bits depend on neither the number of processes
nor on interruptions. A shard K/N computes the parts K, K + N, K + 2N, … .
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, SettingError
from cordgt.inference.part_files import FORMAT, PartFiles, WritePart, parse_pattern, write_parquet
from cordgt.inference.recommend_batch import BatchRecommender
from cordgt.inference.run import Run
from cordgt.runtime.threads import single_thread
from cordgt.training.run_checksums import file_checksum
from cordgt.training.run_config import fingerprint, ids_fingerprint

PART_SIZE = 10_000  # sources in a part
# What the keys of a manifest describe. All others are options of the command.
MANIFEST_SUBJECTS = dict.fromkeys(
    ("model", "config_sha256", "weights_sha256", "first_scorer_sha256"), "run"
) | dict.fromkeys(("cut", "history", "history_ids"), "history or time")


@dataclass(frozen=True)
class RecommendAllRequest:
    """What to recommend, from which run. It can be sent to another process, which loads the run itself."""

    run: str  # run folder
    at: str | None = None  # time of the query; None: after the whole history
    top: int = 10
    new_only: bool = False
    candidates: Sequence[Any] | None = None  # ids of destinations; None: all
    exclude: Sequence[Any] | None = None  # ids of destinations that are no answers
    groups: Mapping[Any, Any] | None = None  # group of each destination id
    per_group: int | None = None  # at most so many answers of a group
    budget: int | None = None  # candidates that the model ranks; None: the default
    exhaustive: bool = False  # True: the model ranks every candidate
    part_size: int = PART_SIZE
    device: str = "auto"
    events: str | None = None  # file of later events
    columns: Mapping[str, Any] = field(default_factory=dict)  # column options of that file

    def __post_init__(self) -> None:
        if self.top < 1 or self.part_size < 1:
            raise SettingError("top and part_size must be at least 1.")

    def load(self) -> RecommendAllJob:
        """Load the run, and the later events if there are any."""
        run = Run.load(self.run, self.device)
        return RecommendAllJob(run if self.events is None else run.with_events(self.events, **self.columns), self)


@dataclass(frozen=True)
class RecommendAllJob:
    """A request with its run: it computes any part."""

    run: Run
    request: RecommendAllRequest

    @cached_property
    def recommender(self) -> BatchRecommender:
        request, predictor = self.request, self.run.predictor
        names = ("candidates", "exclude", "new_only", "groups", "per_group")
        recommender = BatchRecommender.at_time(
            predictor,
            None if request.at is None else self.run.stream.parse_time(request.at),
            top=request.top,
            allowed=predictor.make_filter(**{name: getattr(request, name) for name in names}),
            budget=request.budget,
            exhaustive=request.exhaustive,
        )
        with one_thread():
            _ = recommender.resolved_budget  # SettingError if it is too small
        return recommender

    @cached_property
    def sources(self) -> np.ndarray:
        """The node indices (S,) of the sources, in their order in the parts."""
        return self.recommender.sources()

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the answer depends on: the run, its history, the time and the options. The same in every process."""
        run, request, stream = self.run, self.request, self.run.stream
        return {
            "format": FORMAT,
            "model": run.settings.model,
            "config_sha256": file_checksum(run.path / "config.toml"),
            "weights_sha256": file_checksum(run.path / run.weights_file),
            "at": None if request.at is None else str(stream.parse_time(request.at)),
            "cut": self.recommender.cut,
            "history": fingerprint(stream),
            "history_ids": ids_fingerprint(stream),
            "top": request.top,
            "new_only": request.new_only,
            "candidates_sha256": _hash_ids(request.candidates),
            "exclude_sha256": _hash_ids(request.exclude),
            "groups_sha256": _hash_ids(None if request.groups is None else list(request.groups.items())),
            "per_group": request.per_group,
            "budget": request.budget,
            "exhaustive": request.exhaustive,
            "first_scorer_sha256": self.first_scorer_hash,
            "part_size": request.part_size,
            "n_sources": len(self.sources),
            "n_parts": -(-len(self.sources) // request.part_size),
        }

    @cached_property
    def first_scorer_hash(self) -> str | None:
        """Hash of the first scorer's weights; None if it is not used. It is trained now if the run has none yet."""
        predictor, budget = self.run.predictor, self.recommender.resolved_budget
        n = predictor.destinations.count(self.recommender.cut)
        if self.request.exhaustive or predictor.model.is_cheap or n <= budget:
            return None
        with one_thread():
            weights = predictor.first_scorer.state_dict()
        return hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in weights.values())).hexdigest()

    def sources_of(self, number: int) -> np.ndarray:
        """Return the node indices of the sources of a part."""
        size = self.request.part_size
        return self.sources[number * size : (number + 1) * size]

    def part(self, number: int, callbacks: Callback = NO_CALLBACK) -> pa.Table:
        """Return the rows of a part: see `recommend_batch.COLUMNS`."""
        with one_thread():
            return self.recommender.recommend(self.sources_of(number), callbacks)


@dataclass(frozen=True)
class Shard:
    """The K-th of N shares of the parts; K counts from 1."""

    number: int = 1
    n_shards: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """Return the shard of ``K/N``; the whole for None."""
        if text is None:
            return cls()
        k, slash, n = text.partition("/")
        if not (slash and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
            raise SettingError(f"--shard {text}: give K/N, such as 2/3, with K from 1 to N.")
        return cls(int(k), int(n))

    def parts(self, n_parts: int) -> range:
        """Return the numbers of the parts of this shard, counted from 0."""
        return range(self.number - 1, n_parts, self.n_shards)

    def __str__(self) -> str:
        return f"{self.number}/{self.n_shards}"


@dataclass(frozen=True)
class RecommendAllResult:
    """What a call has done. The other shards may be unfinished."""

    files: PartFiles
    shard: Shard
    n_written: int = 0  # parts
    n_skipped: int = 0  # parts that existed already
    n_sources: int = 0  # sources of the parts written now
    seconds: float = 0.0


def recommend_all(
    request: RecommendAllRequest,
    output: str | Path,
    *,
    shard: Shard | None = None,
    write: WritePart = write_parquet,
    callbacks: Callback = NO_CALLBACK,
    job: RecommendAllJob | None = None,
) -> RecommendAllResult:
    """Write the recommendations of all sources, or of a shard, as part files; parts that exist are skipped.

    ``output`` is a folder, or a path with ``*`` in its name. ``write`` writes a table to a path atomically. ``job``:
    the loaded request, if there is one. DataError if the existing parts are of another run, history or option.
    """
    shard = Shard() if shard is None else shard
    pattern = parse_pattern(output)
    job = request.load() if job is None else job
    files = PartFiles(pattern, job.manifest, MANIFEST_SUBJECTS)
    files.prepare()
    todo = unfinished_parts(files, shard)
    progress = PartProgress(callbacks, job, todo, shard)
    for number in todo:
        write_part(job, files, number, write, progress)
        progress.on_part_end()
    return progress.result(files)


def unfinished_parts(files: PartFiles, shard: Shard) -> list[int]:
    """Return the numbers of the parts of a shard that are not written yet."""
    return [number for number in shard.parts(files.n_parts) if not files.is_finished(number)]


def write_part(
    job: RecommendAllJob, files: PartFiles, number: int, write: WritePart, callbacks: Callback = NO_CALLBACK
) -> int:
    """Compute and write one part; return its number of sources. DataError if the run is not that of the manifest."""
    if job.manifest != files.manifest:
        raise DataError(f"{job.run.path} or its history has changed since the work began. Start the command again.")
    files.write(number, job.part(number, callbacks), write)
    return len(job.sources_of(number))


class PartProgress(Callback):
    """Reports how many sources are done, and how long the rest takes."""

    def __init__(self, callbacks: Callback, job: RecommendAllJob, todo: Sequence[int], shard: Shard) -> None:
        self.callbacks, self.shard, self.n_parts = callbacks, shard, len(todo)
        self.n_skipped = len(shard.parts(job.manifest["n_parts"])) - len(todo)
        self.n_total = sum(len(job.sources_of(number)) for number in todo)
        self.n_sources, self.n_written = 0, 0
        self.start_time = time.perf_counter()
        callbacks.on_stage_start("recommending", self.n_total)

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.n_sources += n
        seconds = time.perf_counter() - self.start_time
        self.callbacks.on_time_estimate(seconds / max(1, self.n_sources) * (self.n_total - self.n_sources))
        self.callbacks.on_step(n)

    def on_part_end(self) -> None:
        """One more part is written."""
        self.n_written += 1

    def result(self, files: PartFiles) -> RecommendAllResult:
        seconds = time.perf_counter() - self.start_time
        return RecommendAllResult(files, self.shard, self.n_written, self.n_skipped, self.n_sources, seconds)


def _hash_ids(values: Sequence[Any] | None) -> str | None:
    """Return a hash of ids in any order; None for None."""
    return None if values is None else hashlib.sha256(json.dumps(sorted(map(str, values))).encode()).hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch and of numba, so that the bits do not depend on the number of cores."""
    n = numba.get_num_threads()
    with single_thread():
        numba.set_num_threads(1)
        try:
            yield
        finally:
            numba.set_num_threads(n)


def with_absolute_paths(request: RecommendAllRequest) -> RecommendAllRequest:
    """Return the request for a process with another working folder."""
    events = None if request.events is None else str(Path(request.events).absolute())
    return replace(request, run=str(Path(request.run).absolute()), events=events)
