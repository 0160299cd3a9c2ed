"""Candidate retrieval: choose a few hundred destinations that the model then ranks."""
