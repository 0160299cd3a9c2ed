"""A trained run and its predictions."""
