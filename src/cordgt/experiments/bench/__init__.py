"""Benchmarks: the time of each stage, and the hardware's limits measured in the same run. Start with `suite`."""
