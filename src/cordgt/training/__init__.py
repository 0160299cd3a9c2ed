"""Training: settings, the loop and its step, checkpoints, and the run folder."""
