"""Data of any kind to a store, within bounded memory: made anew, or added to one."""
