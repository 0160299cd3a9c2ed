"""Triton kernels that read history on a GPU."""
