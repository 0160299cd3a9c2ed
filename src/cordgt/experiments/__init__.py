"""The paper's tables and figures, each from cells: trained runs of which a few kilobytes are kept."""
