"""Benchmarks: each stage timed beside the machine's own limits, which are measured in the same run."""
