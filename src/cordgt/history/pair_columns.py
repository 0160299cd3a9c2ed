"""The groups of columns of a pair, by name: what `counts` and CorDGT+ read of a source and a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cordgt.history.collaborative import COLLABORATIVE_COLUMNS, collaborative_features
from cordgt.history.likeness import LIKENESS_COLUMNS, likeness_columns
from cordgt.history.pair_features import PAIR_COLUMNS, pair_features
from cordgt.history.queries import History, Queries
from cordgt.history.votes import VOTES_COLUMNS, votes_columns


class ColumnGroup(NamedTuple):
    """Columns that are computed together: pure functions of ``cut``, without parameters."""

    columns: tuple[str, ...]
    read: Callable[[History, Queries], Tensor]  # (B, M, columns) float32


COLUMN_GROUPS = {
    "pair": ColumnGroup(PAIR_COLUMNS, lambda history, queries: pair_features(history.index, queries)),
    "collaborative": ColumnGroup(
        COLLABORATIVE_COLUMNS, lambda history, queries: collaborative_features(history.index, queries)
    ),
    "votes": ColumnGroup(VOTES_COLUMNS, lambda history, queries: votes_columns(history.index, queries)),
    "likeness": ColumnGroup(LIKENESS_COLUMNS, likeness_columns),
}


def column_names(groups: Sequence[str]) -> list[str]:
    """Return the names of the columns of these groups, in order."""
    return [name for group in groups for name in COLUMN_GROUPS[group].columns]


def read_columns(history: History, queries: Queries, groups: Sequence[str]) -> Tensor:
    """Return the columns of these groups for every pair: (B, M, P) float32."""
    columns = [COLUMN_GROUPS[group].read(history, queries) for group in groups]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)
