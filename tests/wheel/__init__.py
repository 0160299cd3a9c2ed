"""Tests of the installed wheel: `make test-wheel` builds it and runs them."""
