"""Training: one loop, its step, what it saves, and whoever watches it."""
