# Two commands: `make demo` trains the embedded default and shows it, `make test` runs every check.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
VIEW   ?= 1
JOBS   ?= $(shell nproc)
STAMP  := $(VENV)/.installed

.PHONY: help setup demo test format lint types unit docs clean

help:
	@echo "make demo     train the embedded default on this machine (VIEW=0: without the viewer)"
	@echo "make test     format, lint, types and tests"
	@echo "make setup    only make the virtual environment $(VENV)"
	@echo "make docs     build the documentation as a site, in build/site"
	@echo "make format   rewrite the code in the project's format"
	@echo "make clean    remove $(VENV) and caches; output/ stays"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Archer needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing Archer and its pinned dependencies into $(VENV) ..."
	@$(PIP) install --quiet -c constraints.txt -e ".[viewer]"
	@touch $@

$(VENV)/.installed-dev: $(STAMP)
	@echo "Installing what the checks need ..."
	@$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	@name=demo-$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/archer train trainer.experiment_name=$$name || exit $$?; \
	test "$(VIEW)" = 0 || $(BIN)/archer view output/archer/$$name

test: $(VENV)/.installed-dev lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	@sh scripts/ensure_chromium.sh
	@sh scripts/ensure_trl.sh $(BIN)/python
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/build_docs.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
