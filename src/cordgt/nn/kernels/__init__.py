"""Fused Triton kernels of the layers. Each module names its torch reference."""
