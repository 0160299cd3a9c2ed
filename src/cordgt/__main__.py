"""``python -m cordgt``."""

from cordgt.cli import main

main()
