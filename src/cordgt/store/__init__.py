"""Stores: event streams on disk, memory-mapped. Build, append, verify and open them."""
