"""Read events from files, tables and datasets. Start with `readers`; `event_chunks` reads large files in chunks."""
