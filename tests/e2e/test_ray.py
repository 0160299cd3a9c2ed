"""`recommend_all` on a local Ray with two workers: the same bits as one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import cordgt
from cordgt.errors import DataError, SettingError
from cordgt.inference import ray as on_ray
from cordgt.inference.recommend_all import RecommendAllRequest, Shard, recommend_all

from .conftest import Trained
from .helpers import contents

OPTIONS = {"part_size": 3, "top": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install cordgt[ray]")
    path = os.pathsep.join([str(Path(cordgt.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_parts_and_rows_have_the_bits_of_one_process(trained: Trained, tmp_path: Path) -> None:
    request = RecommendAllRequest(str(trained.run), **OPTIONS)  # type: ignore[arg-type]
    recommend_all(request, tmp_path / "one")
    recommend_all(request, tmp_path / "ray", shard=Shard(2, 2))
    result = on_ray.recommend_all(trained.run, tmp_path / "ray", num_workers=2, **OPTIONS)
    assert (result.n_written, result.n_skipped) == (2, 2)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    assert on_ray.recommend_all(trained.run, tmp_path / "ray", **OPTIONS).n_written == 0
    rows = on_ray.recommend_dataset(trained.run, num_workers=2, **OPTIONS).sort(["part", "src"]).take_all()
    expected = pq.read_table(sorted((tmp_path / "one").glob("*.parquet"))).to_pylist()
    key = {row["src"]: i for i, row in enumerate(expected)}
    rows.sort(key=lambda row: (key[row["src"]], row["rank"]))
    assert [{k: v for k, v in row.items() if k != "part"} for row in rows] == expected


@pytest.mark.usefixtures("cluster")
def test_other_options_are_refused(trained: Trained, tmp_path: Path) -> None:
    on_ray.recommend_all(trained.run, tmp_path, shard="1/4", **OPTIONS)
    with pytest.raises(DataError, match="top=4"):
        on_ray.recommend_all(trained.run, tmp_path, **(OPTIONS | {"top": 5}))


def test_without_ray_the_message_says_what_to_install(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(SettingError, match=r"pip install 'cordgt\[ray\]'"):
        on_ray.recommend_all(trained.run, tmp_path, **OPTIONS)


def test_csv_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Parquet only"):
        on_ray.recommend_all(trained.run, tmp_path / "part-*.csv", **OPTIONS)
