"""TGN: a gated memory of each node, and attention to what its most recent partners remember.

Rossi et al., Temporal Graph Networks for Deep Learning on Dynamic Graphs, 2020: the variant TGN-attn.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cordgt.context import Context
from cordgt.models.memory import AttentionModel, AttentionSettings, MemoryBatch


@dataclass(frozen=True)
class TgnSettings(AttentionSettings):
    """Settings of TGN."""


class Tgn(AttentionModel):
    """Messages from memory, a GRU as updater, embeddings by graph attention.

    Attention learns how to encode times; messages say it the same way, and nothing is learnt from that.

    Differs: the encoding of time in a message is that of the weights at hand; the released code keeps the one of the
    batch that the message comes from. Node features are projected to the width of memory.
    """

    def __init__(self, settings: TgnSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(
            settings,
            edge_dim=edge_dim,
            node_dim=node_dim,
            updater=nn.GRUCell,
            reads=settings.shape,
            learns_time=True,
        )

    def embedding(self, batch: MemoryBatch, states: Tensor, last: Tensor) -> Tensor:
        tree = Context(batch.tree.node.flatten(0, 1), batch.tree.pos.flatten(0, 1))
        n = batch.tree.node.shape[1]
        t = batch.t.repeat_interleave(n)
        found = self.attend(batch.past.history, self.reader.shape, tree, t, states.flatten(0, 1))
        return found.unflatten(0, (-1, n))
