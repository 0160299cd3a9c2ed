"""TGN: a gated memory of each node, and attention to the memory of its most recent neighbors.

Rossi et al., Temporal Graph Networks for Deep Learning on Dynamic Graphs, 2020: the variant TGN-attn.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cordgt.history.context import Context
from cordgt.models.memory import AttentionMemoryModel, AttentionMemorySettings, MemoryBatch


@dataclass(frozen=True)
class TgnSettings(AttentionMemorySettings):
    """Settings of TGN."""

    learn_time: bool = False  # True: attention learns the time encoding, as in the original


class Tgn(AttentionMemoryModel):
    """Messages from memory, a GRU as updater, embeddings by graph attention.

    Differs: the time encoding is fixed unless ``learn_time`` is set. The released code learns it in attention and uses
    it in messages, each as it was in the message's batch; here messages use the current weights. Node features are
    projected to the width of memory.
    """

    updater_class = nn.GRUCell
    embeds_neighbors = True

    def __init__(self, settings: TgnSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim, learn_time=settings.learn_time)

    def embedding(self, batch: MemoryBatch, memory: Tensor, last: Tensor) -> Tensor:
        tree = Context(batch.tree.node.flatten(0, 1), batch.tree.pos.flatten(0, 1))
        n = batch.tree.node.shape[1]
        t = batch.t.repeat_interleave(n)
        return self.attend(batch.past.history, self.reader.shape, tree, t, memory.flatten(0, 1)).unflatten(0, (-1, n))
