"""The stream of events and its columns: ids, times, hashes; written to files, and described."""
