"""Layers and encodings shared by models; `cordgt.nn.kernels` holds their fused Triton kernels."""
