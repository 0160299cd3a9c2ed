"""The report of a run, or of several: one HTML file each, which needs nothing but a browser."""
