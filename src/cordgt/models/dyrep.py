"""DyRep: memory alone speaks for a node, and its messages tell what the other end attends to.

Trivedi et al., DyRep: Learning Representations over Dynamic Graphs, 2019, in the form that TGN's authors measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cordgt.models.memory import AttentionModel, AttentionSettings, Remembered, recent_trees
from cordgt.past.context import TreeShape


@dataclass(frozen=True)
class DyrepSettings(AttentionSettings):
    """Settings of DyRep."""


class Dyrep(AttentionModel):
    """Messages from graph attention, an RNN as updater, embeddings that are memory itself.

    The attention stays as it was drawn, as in the released code of TGN, where messages are cut off from it before
    anything is learnt. Were it to learn, memory would be made by attention that is another one by the end of an epoch,
    and a replay would find a memory that the head never saw.
    """

    def __init__(self, settings: DyrepSettings, *, edge_dim: int, node_dim: int) -> None:
        nothing = TreeShape(())
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim, updater=nn.RNNCell, reads=nothing)
        self.layers.requires_grad_(False)

    def tell(self, now: Remembered, node: Tensor, pos: Tensor) -> Tensor:
        index, shape = now.history.index, self.settings.shape
        tree = recent_trees(index, shape, node, index.tie_start[pos].long())
        return self.attend(now.history, shape, tree, index.elapsed[pos], self.recall(now, tree.node)[0])
