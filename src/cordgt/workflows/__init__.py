"""Trainings: one run, several seeds, a grid search, a node classifier."""
