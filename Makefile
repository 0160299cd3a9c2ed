# Every target does its own set-up in .venv: Python 3.11 or newer and make are all it takes.
# Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The tests run side by side, a file at a time, so that a file compiles its loops and trains its models once.
WORKERS ?= auto
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=2
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses=8 --dist=loadfile --durations=10

# CPU kernels of test-kernels, one after the other, or several at once (A=1+B=2). `make test` uses the machine's own.
# Also: MKL_ENABLE_INSTRUCTIONS=SSE4_2
KERNELS ?= MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default

# What test-wheel runs in an environment with the installed wheel, whose other packages are those of .venv.
WHEEL_ENV := build/wheel-env
WHEEL_TESTS ?= tests/wheel $(patsubst %,tests/unit/test_%.py,layers events readers frames predict portability settings)

# The run of `make serve`, which no other command writes. It is trained once; an unfinished one is deleted.
SERVED := runs/served-demo

# Benchmarks: on what is generated and on real data that is found by name; at toy size to see that they run.
FOUND = $(shell $(BIN)/python -c 'from cordgt.io.datasets.registry import find_dataset; print(*filter(find_dataset, ["uci", "wikipedia"]))')
BENCH_DATA ?= synthetic $(FOUND) food-twin
TOY := --quick --repeat 1 --device cpu --set fanout=2,1 --set hidden=8 --set heads=2 --set batch_size=20

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo serve test test-kernels test-wheel check bench format docs clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: $(VENV)/.core ## train on a generated stream, compare with an oracle, ask a few questions
	$(BIN)/cordgt demo

serve: $(VENV)/.serve $(SERVED)/metrics.json ## the demo's run as a live service with a page; ARGS="--port 8001" for options
	$(BIN)/cordgt serve $(SERVED) $(ARGS)

$(SERVED)/metrics.json: | $(VENV)/.serve
	rm -rf $(SERVED)
	$(BIN)/cordgt demo --out $(SERVED)

test: $(VENV)/.dev ## run the tests; ARGS="-k name" for some of them
	$(PYTEST) $(ARGS)

test-kernels: $(VENV)/.dev ## contract and oracle tests with other CPU kernels, which round differently
	@for kernels in $(KERNELS); do \
		echo "CPU kernels: $$kernels"; \
		env $$(echo "$$kernels" | tr + " ") $(PYTEST) tests/contract tests/oracle $(ARGS) || exit 1; done

test-wheel: $(VENV)/.dev ## build wheel and sdist, install the wheel apart from the source, run a selection of the tests
	rm -rf build/dist $(WHEEL_ENV)
	$(BIN)/python -m build --no-isolation --outdir build/dist .
	$(BIN)/python -m venv --without-pip $(WHEEL_ENV)
	$(BIN)/python -m pip --python $(WHEEL_ENV)/bin/python install --quiet --no-deps build/dist/*.whl
	$(BIN)/python -c 'import sys; print(*(p for p in sys.path if p.endswith("site-packages")), sep="\n")' \
		> $$($(WHEEL_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth
	env -u PYTHONPATH CORDGT_DIST=build/dist $(TEST_ENV) $(WHEEL_ENV)/bin/python -m pytest $(WHEEL_TESTS) $(ARGS)

check: $(VENV)/.dev ## format, lint, types, tests, docs and toy benchmarks: what a change must pass
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) $(ARGS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/cordgt bench all $(TOY)
	$(BIN)/cordgt bench growth $(TOY)

bench: $(VENV)/.core ## time every stage and compare with the machine's limits; BENCH_DATA="uci" for some data, ARGS for options
	@for data in $(BENCH_DATA); do $(BIN)/cordgt bench all --data "$$data" $(ARGS) || exit 1; done

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	rm -rf src/*.egg-info
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: the set-up is done once, and again when pyproject.toml changes. The development set-up includes the others.
$(VENV)/.core: pyproject.toml
	$(call install,.)
	@touch $@

$(VENV)/.serve: pyproject.toml
	$(call install,'.[serve]')
	@touch $(VENV)/.core $@

$(VENV)/.dev: pyproject.toml
	$(call install,'.[dev]')
	@touch $(VENV)/.core $(VENV)/.serve $@

define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable $(1)
endef
