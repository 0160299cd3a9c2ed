"""What a model is trained for and how it is evaluated: splits, negatives, protocol, metrics, baselines."""
