"""Audits. `model` checks that a model sees only what it may. `data` reports properties of a stream that matter."""
