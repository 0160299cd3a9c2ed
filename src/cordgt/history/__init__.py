"""What may be known at a moment: every answer is a pure function of the first ``cut`` events."""
