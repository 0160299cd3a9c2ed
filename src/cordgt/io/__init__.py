"""Files and tables as people have them, to events: whole, or a piece at a time."""
