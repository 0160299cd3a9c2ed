"""Audits. `model` and `forecasts` check that a run sees only what it may. `data` reports properties that matter."""
