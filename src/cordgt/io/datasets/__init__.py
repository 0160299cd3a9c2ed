"""Datasets by name: find them on this machine, generate them, or fetch them from their publishers."""
