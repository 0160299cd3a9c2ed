"""Triton kernels of history lookups on a GPU. Each module names its torch reference."""
