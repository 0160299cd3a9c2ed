"""What computes: threads, processes, the signals that stop them, and how much work they do."""
