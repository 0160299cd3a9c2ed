"""The evaluation protocol: visibility rules and errors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import SettingError
from cordgt.tasks.protocol import NEGATIVES, POOLS, VISIBILITIES, Protocol, visible_cuts


def test_default_values() -> None:
    p = Protocol()
    assert (p.visibility, p.split, p.train_ratio, p.val_ratio) == ("event", "quantile", 0.70, 0.15)
    assert (p.mask_nodes, p.mask_seed, p.negatives, p.pool) == (0.1, 0, "random", "destinations")
    assert p.eval_batch_size == 30


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Protocol().visibility = "paper"  # type: ignore[misc]


@given(pairs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9))
def test_visible_cuts(pairs: list[tuple[int, int]]) -> None:
    """Trees stop at the own time, or at the batch's start; records likewise, and never later than the trees."""
    own, start = (torch.tensor(x) for x in zip(*pairs, strict=True))
    first = [min(a, b) for a, b in pairs]
    found = {rule: tuple(x.tolist() for x in visible_cuts(rule, own, start)) for rule in VISIBILITIES}
    assert found == {"event": (own.tolist(),) * 2, "paper": (own.tolist(), first), "batch": (first, first)}
    for cut, pair_cut in found.values():
        assert all(p <= c <= o for p, c, o in zip(pair_cut, cut, own.tolist(), strict=True))


def test_choices() -> None:
    assert VISIBILITIES == ("event", "paper", "batch")
    assert "random" in NEGATIVES and {"destinations", "nodes"} <= set(POOLS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visibility": "all"}, "visibility=all .* event, paper, batch"),
        ({"split": "half"}, "split=half .* quantile, time"),
        ({"negatives": "hard"}, "negatives=hard"),
        ({"pool": "users"}, "pool=users .* destinations, nodes"),
        ({"mask_nodes": 1.0}, "mask_nodes=1"),
        ({"mask_nodes": -0.1}, "mask_nodes=-0.1"),
        ({"mask_nodes": float("nan")}, "mask_nodes=nan"),
        ({"train_ratio": 0.0}, "train_ratio=0"),
        ({"val_ratio": 0.0}, "val_ratio=0"),
        ({"train_ratio": 0.9, "val_ratio": 0.1}, "val_ratio=0.1: both must be above 0"),
        ({"train_ratio": float("nan")}, "train_ratio=nan"),
        ({"eval_batch_size": 0}, "eval_batch_size=0"),
    ],
    ids=str,
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Protocol(**changes)
