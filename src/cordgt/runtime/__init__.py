"""How work runs: threads, processes, signals, kernel selection and profiling."""
