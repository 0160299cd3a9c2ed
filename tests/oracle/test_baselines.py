"""Baselines, compared with slow rules on the same queries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.tasks.baselines import BASELINES, baseline_metrics
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import NEGATIVES, Protocol
from cordgt.tasks.run_metrics import SETTINGS, SPLITS

from . import slow
from .strategies import Stream
from .test_ranking import prepare, slowly, tasks

DEFINITIONS = {"seen before": slow.Edgebank(), "seen recently": slow.Edgebank(0.15), "popularity": slow.Popularity()}


@pytest.mark.parametrize("negatives", [kind for kind in NEGATIVES if kind != "popularity"])
@settings(max_examples=10)
@given(task=tasks(), ranking=st.sampled_from(("none", "3", "all")))
def test_baselines(negatives: str, task: LinkTask, ranking: str) -> None:
    task = replace(task, protocol=replace(task.protocol, negatives=negatives, ranking=ranking, filter="none"))
    expected = slowly(task)
    got = baseline_metrics(task)
    assert got.keys() == DEFINITIONS.keys() == BASELINES.keys()
    for name, splits in got.items():
        assert tuple(splits) == SPLITS
        for split, by_setting in splits.items():
            assert tuple(by_setting) == SETTINGS
            for setting, metrics in by_setting.items():
                wanted = expected.metrics(DEFINITIONS[name], split, setting)
                assert metrics == pytest.approx(wanted, abs=1e-12), (name, split, setting)


def test_baselines_by_hand() -> None:
    """0 meets 1 and 2 by turns and never 3, who meets 4 all the time; asked is 0-1 at the end, against 3 or 2.

    Seen before: 1 and 2 are known, 3 is not. Popularity: 3 and 4 have more events than 1 and 2.
    """
    src = [0, 0, 4, 4, 4, 4, 4, 0, 0, 4, 0]
    dst = [1, 2, 3, 3, 3, 3, 3, 2, 1, 3, 1]
    stream = Stream(src, dst, [*range(len(src))], 5, None)
    task = prepare(stream, Protocol(mask_nodes=0, ranking="all"))
    assert task.split.test.tolist() == [9, 10]
    got = baseline_metrics(task)
    test = {name: metrics["test"]["transductive"] for name, metrics in got.items()}
    # 4-3 is the only one known of its source: rank 1. 0-1 is tied with 2: rank 1.5.
    assert test["seen before"]["mrr"] == pytest.approx((1 + 1 / 1.5) / 2)
    # the last 1.5 moments before 10 hold nothing of 0; the last 1.35 before 9 hold 0-1 alone: 3 is tied with 1 and 2
    assert test["seen recently"]["mrr"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    # 3 has 5 events and comes first; asked of 0-1, 3 is above and 2 is tied with two each
    assert test["popularity"]["mrr"] == pytest.approx((1 + 1 / 2.5) / 2)
    nobody = got["seen before"]["test"]["inductive"]
    assert nobody["events"] == 0 and nobody["mrr"] is None and nobody["ap"] is None
