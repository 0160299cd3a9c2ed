"""DyRep: embeddings are memory itself; messages come from attention at the other end.

Trivedi et al., DyRep: Learning Representations over Dynamic Graphs, 2019, in the form that TGN's authors measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.models.memory import AttentionMemoryModel, AttentionMemorySettings, MemoryCache, recent_trees


@dataclass(frozen=True)
class DyrepSettings(AttentionMemorySettings):
    """Settings of DyRep."""


class Dyrep(AttentionMemoryModel):
    """Messages from graph attention, an RNN as updater, embeddings that are memory itself.

    The attention keeps its initial weights, as in the released code of TGN, where no gradient reaches it. If it were
    trained, an epoch's memory would come from changing attention, and a replay would give a memory that the head never
    saw.
    """

    def __init__(self, settings: DyrepSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)
        self.layers.requires_grad_(False)

    def message(self, cache: MemoryCache, node: Tensor, pos: Tensor) -> Tensor:
        index, shape = cache.history.index, self.settings.shape
        tree = recent_trees(index, shape, node, index.tie_start[pos].long())
        return self.attend(cache.history, shape, tree, index.elapsed[pos], self.read_memory(cache, tree.node)[0])
