"""Data by name: found, generated, or fetched from where it is published."""
