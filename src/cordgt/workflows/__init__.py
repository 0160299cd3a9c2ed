"""Jobs that train: one run, several seeds, a search, a node classifier."""
