# `make` lists what there is to call.
.DEFAULT_GOAL := help
.PHONY: help setup demo table3-tiny modern-tiny table4-tiny test test-fast check format clean

BIN := .venv/bin
INSTALLED := .venv/installed
# The first of these that is Python 3.11 to 3.13; a name may exist and yet not run, as a version manager's stand-in does.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	"$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo "$$name" && break; done)

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## Make .venv with the versions of requirements.lock and the project itself

$(INSTALLED): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found; install one, or name it: make setup PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: setup  ## Train a tiny model on the embedded corpus, in a few minutes on a CPU, and show its translations
	$(BIN)/python src/run.py

# FLAGS=trainer.precision=bf16-mixed is faster on CPUs that multiply in bfloat16 (AMX, AVX512-BF16), slower on others.
TABLE3_TINY := $(BIN)/python src/run.py sweep=table3 scale=tiny trainer=cpu launcher.parallel=2 $(FLAGS)
table3-tiny: setup  ## Train the 20 rows of Table 3 in miniature, half an hour or more on two cores, and write the report
	$(TABLE3_TINY)
	$(TABLE3_TINY) task=report

TABLE4_TINY := $(BIN)/python src/run.py sweep=table4 scale=tiny_trees trainer=cpu launcher.parallel=2 $(FLAGS)
table4-tiny: setup  ## Train the parsers of Table 4 in miniature, on a small grammar, and write the report
	$(TABLE4_TINY)
	$(TABLE4_TINY) task=report

# A test of the machinery: after so few steps no score means anything.
MODERN_TINY := $(BIN)/python src/run.py sweep=modern scale=tiny trainer=cpu launcher.parallel=2 training.max_steps=20 \
	training.checkpoint_steps=5 training.validate_steps=20 inference=greedy $(FLAGS)
modern-tiny: setup  ## Train the rows of the family for a few steps each, in minutes, and write the report
	$(MODERN_TINY)
	$(MODERN_TINY) task=report

test: setup  ## Run all tests; what lacks chromium, SLURM or Multi30k is skipped, see CONTRIBUTING.md
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

test-fast: setup  ## Run the tests that are not slow, in two minutes or less: between two edits
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

check: setup  ## Look for errors without running anything: ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src benchmarks

format: setup  ## Format the code, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove caches and what the installation left; never runs or corpora
	rm -rf .mypy_cache .pytest_cache .ruff_cache build src/*.egg-info
	find . \( -name .venv -o -name outputs -o -name .git \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
