"""Audits: `model` checks that a model sees only what it may; `data` reports what to know about a stream first."""
