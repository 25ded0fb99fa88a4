# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types bench clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "onceward needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The main job on real-looking input, twice on one ledger, then the proof under kills and pauses.
demo: $(VENV)/installed
	@rm -rf .demo && mkdir .demo
	$(BIN)/onceward pipe examples/webhooks.ndjson --key id --store sqlite:///.demo/ledger.db --call examples.charge:charge
	@echo "--- once more: only replays ---"
	$(BIN)/onceward pipe examples/webhooks.ndjson --key id --store sqlite:///.demo/ledger.db --call examples.charge:charge --new-only
	$(BIN)/onceward stats --store sqlite:///.demo/ledger.db
	@echo "--- workers killed and paused in the middle of their work ---"
	$(BIN)/onceward demo

# Some tests need Debian's faketime and root; without them they say so and are skipped, but in CI they fail.
test: $(VENV)/installed
	$(BIN)/python -m pytest

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf $(VENV) .demo build dist
