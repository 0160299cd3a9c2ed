"""Reports, comparisons and audits of trained runs."""
