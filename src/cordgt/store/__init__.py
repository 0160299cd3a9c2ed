"""A store on disk: arrays that are mapped into memory, the folder that holds them, and the index in files."""
