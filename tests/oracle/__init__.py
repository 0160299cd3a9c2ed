"""Slow, obvious versions of what the package computes fast, and the tests that hold the two together."""
