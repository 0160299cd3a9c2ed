"""HTML reports: `run_report` of one run, `comparison_report` of several. Each is one file that needs only a browser."""
