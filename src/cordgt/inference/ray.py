"""`recommend_all` on a Ray cluster: actors of Ray Data compute the parts. Needs ``pip install cordgt[ray]``.

The parts are those of `cordgt.inference.recommend_all`, to the bit, because the same code computes them with one
thread. Every machine must see the run folder, and the output folder if there is one, under the same path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cordgt.errors import SettingError
from cordgt.inference.part_files import PartFiles, parse_pattern, write_parquet
from cordgt.inference.recommend_all import (
    MANIFEST_SUBJECTS,
    RecommendAllRequest,
    RecommendAllResult,
    Shard,
    unfinished_parts,
    with_absolute_paths,
    write_part,
)


def recommend_dataset(run: str | Path, *, num_workers: int = 2, num_gpus: float = 0, **options: Any) -> Any:
    """Return a `ray.data.Dataset` of the recommendations of every source, with a column ``part``.

    ``options`` are those of `RecommendAllRequest`. Sort by ``part`` for the order of one process: Ray Data does not
    keep the order of parts, but keeps that of the rows in a part.
    """
    request = with_absolute_paths(RecommendAllRequest(str(run), **options))
    n_parts = request.load().manifest["n_parts"]
    return _map_parts(range(n_parts), _PartRecommender, {"request": request}, num_workers, num_gpus)


def recommend_all(
    run: str | Path,
    output: str | Path,
    *,
    shard: str | None = None,
    num_workers: int = 2,
    num_gpus: float = 0,
    **options: Any,
) -> RecommendAllResult:
    """Write the recommendations of every source as Parquet parts, as `cordgt recommend --all` does, with Ray actors.

    Finished parts are skipped. ``options`` are those of `RecommendAllRequest`. ``num_gpus`` is that of each actor.
    """
    request = with_absolute_paths(RecommendAllRequest(str(run), **options))
    pattern, job = parse_pattern(Path(output).absolute()), request.load()
    if pattern.suffix.lower() != ".parquet":
        raise SettingError(f"{pattern}: Ray writes Parquet only.")
    files = PartFiles(pattern, job.manifest, MANIFEST_SUBJECTS)
    files.prepare()
    chosen = Shard.parse(shard)
    todo = unfinished_parts(files, chosen)
    n_skipped = len(chosen.parts(files.n_parts)) - len(todo)
    if not todo:
        return RecommendAllResult(files, chosen, n_skipped=n_skipped)
    options = {"request": request, "pattern": str(pattern), "manifest": job.manifest}
    rows = _map_parts(todo, _PartWriter, options, num_workers, num_gpus).take_all()
    n_sources = sum(row["n_sources"] for row in rows)
    return RecommendAllResult(files, chosen, len(rows), n_skipped, n_sources)


def _map_parts(numbers: Any, worker: type, options: dict[str, Any], num_workers: int, num_gpus: float) -> Any:
    """Return the dataset of what ``num_workers`` actors make of the parts; an actor takes one part at a time."""
    try:
        import ray.data
    except ImportError:
        raise SettingError("Ray is not installed. Install it with: pip install 'cordgt[ray]'.") from None
    parts = ray.data.from_arrow([pa.table({"part": np.array([number])}) for number in numbers])
    return parts.map_batches(
        worker,
        fn_constructor_kwargs=options,
        batch_size=1,
        batch_format="pyarrow",
        concurrency=num_workers,
        num_cpus=1,
        num_gpus=num_gpus,
    )


class _PartRecommender:
    """An actor that loads the run once and returns the rows of parts."""

    def __init__(self, request: RecommendAllRequest) -> None:
        self.job = request.load()

    def __call__(self, batch: pa.Table) -> pa.Table:
        tables = []
        for number in batch["part"].to_pylist():
            rows = self.job.part(number)
            tables.append(rows.append_column("part", pa.array(np.full(rows.num_rows, number))))
        return pa.concat_tables(tables)


class _PartWriter(_PartRecommender):
    """An actor that writes parts and returns how many sources they have."""

    def __init__(self, request: RecommendAllRequest, pattern: str, manifest: dict[str, Any]) -> None:
        super().__init__(request)
        self.files = PartFiles(Path(pattern), manifest)

    def __call__(self, batch: pa.Table) -> pa.Table:
        numbers = batch["part"].to_pylist()
        done = [write_part(self.job, self.files, number, write_parquet) for number in numbers]
        return pa.table({"part": numbers, "n_sources": done})
