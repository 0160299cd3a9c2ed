"""Encodings, attention and layers that models share, as ``torch.nn.Module``. The models are in `cordgt.models`.

`cordgt.nn.cpu_encoder` has the layers of CorDGT on a CPU, `cordgt.nn.kernels` fused Triton kernels for a GPU.
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
