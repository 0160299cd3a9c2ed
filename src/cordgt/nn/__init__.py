"""Encodings, attention and layers that models share, as ``torch.nn.Module``. The models are in `cordgt.models`.

`cordgt.nn.attention` has attention on a CPU and repeatable dropout. `cordgt.nn.kernels` has fused Triton kernels, which
are used on a GPU.
"""

from cordgt.nn.graph_attention import GraphAttention
from cordgt.nn.layers import MergeHead, TemporalAttention, TimeEncoding, TransformerLayer, make_mlp, ranking_loss
from cordgt.nn.positional_encoding import DistanceEncoding, sinusoids
from cordgt.nn.time_encoding import encode_time

__all__ = [
    "DistanceEncoding",
    "GraphAttention",
    "MergeHead",
    "TemporalAttention",
    "TimeEncoding",
    "TransformerLayer",
    "encode_time",
    "make_mlp",
    "ranking_loss",
    "sinusoids",
]
