"""Layers and encodings that several models share."""
