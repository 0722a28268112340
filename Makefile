# Everything a fresh machine needs: Python 3.11+, its venv module and a C library. MPI and torch come from PyPI wheels.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
RANKS  ?= 32
WORKERS ?= 3
PYTEST_ARGS ?=
PACKAGES := emulator memsem collectives serving launch
export PATH := $(abspath $(BIN)):$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # every command would compile the packages anew: 0.7 s of CPU each

.PHONY: run test test-sweeps lint types check fast setup setup-test bytecode clean
.DEFAULT_GOAL := run

setup: $(VENV)/.installed bytecode
setup-test: $(VENV)/.installed-test bytecode

bytecode: $(VENV)/.installed  ## pip compiles what it copies; an editable install is left to whoever imports it first
	@$(BIN)/python -m compileall -q $(PACKAGES)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "superpod needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

NATIVE := $(wildcard emulator/engine/*.c emulator/engine/*.h launch/native/*.c serving/model/native/*.[ch])
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt setup.py $(NATIVE)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

run: setup  ## 32 ranks serve a small seeded workload; every token is checked against one process
	@mkdir -p out
	$(BIN)/superpod replay -n $(RANKS) --token-scale 16 --check-reference --json out/run.json

test: setup-test lint  ## lint and the suite; its sweeps are `make test-sweeps`, types are `make types`
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not sweep' $(PYTEST_ARGS)

test-sweeps: setup-test  ## the wide ranges of seeds, loads and sizes of which the suite has samples
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m sweep $(PYTEST_ARGS)

fast: setup-test  ## the tests that start no rank and take under a minute
	$(BIN)/python -m pytest -m 'not multirank and not slow' $(PYTEST_ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-test
	$(BIN)/mypy

check: types test test-sweeps  ## everything

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '_core*.so' -delete
