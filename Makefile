# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# `--seed 7` for SEED=7, and nothing when it is not given.
upper = $(shell echo $(1) | tr a-z A-Z)
asked = $(if $($(call upper,$(1))),--$(1) $($(call upper,$(1))))

.PHONY: demo demo-steps test test-fast lint types dist api install-lines mutants nightly docs docs-live bench torture histories campaign clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "onceward needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The main job on real-looking input, twice on one ledger, then the proof under kills and pauses. `make demo STORE=postgresql`
# does the main job on a PostgreSQL server that it starts and stops (Debian's postgresql-15). SECONDS=5 makes the proof shorter.
LEDGER ?= sqlite:///.demo/ledger.db
PIPE = $(BIN)/onceward pipe examples/webhooks.ndjson --key event.id --store $(LEDGER) --call examples.charge:charge

demo: $(VENV)/installed
	@rm -rf .demo charges.log && mkdir .demo
	@$(if $(filter postgresql,$(STORE)),$(BIN)/python tests/support/with_postgres.py) $(MAKE) --no-print-directory demo-steps

demo-steps:
	$(PIPE)
	@echo "--- once more: only replays ---"
	$(PIPE) --new-only
	$(BIN)/onceward stats --store $(LEDGER)
	@echo "--- workers killed and paused in the middle of their work ---"
	$(BIN)/onceward demo $(call asked,seconds)

# Some tests need Debian's faketime and root; without them they say so and are skipped, but in CI they fail.
# Most of their time is waiting, so there are more at a time than cores. tests/support/schedule.py has the order.
test: $(VENV)/installed
	$(BIN)/python -m pytest -n 6 --dist loadgroup --tb short

# What needs no server and no process: a minute, for while you work.
test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' tests/unit tests/conformance

# Random faults at random points, for an hour: `make torture SECONDS=600 SEED=7`; `make torture SEED=7 EPISODES=1` replays one.
# Also STORE=postgresql, SHAPE=batch, JOBS=3.
torture: $(VENV)/installed
	cd tests/support && $(abspath $(BIN))/python -m torture $(foreach option,seconds seed episodes jobs store shape plant until,$(call asked,$(option)))

# Histories of what the stores are asked and answer under faults, judged by porcupine (Go), for ten minutes: `make histories SECONDS=60
# STORE=redis`. KIND=failover, PLANT=blind-swap and SEED=7 choose more (docs/reference/measured.md).
histories: $(VENV)/installed
	cd tests/support && $(abspath $(BIN))/python -m histories $(foreach option,seconds seed runs store kind plant,$(call asked,$(option))) $(if $(ASYNCHRONOUS),--asynchronous)

# 5,000 messages through a broker whose consumers are killed every few seconds: `make campaign BROKER=sqs`. STORE=redis is another
# ledger, and MESSAGES=20000 another number (SQS sends ten times as many). BROKER=proxy and BROKER=service do the same with requests.
campaign: $(VENV)/installed
	ONCEWARD_NIGHTLY=1 ONCEWARD_CAMPAIGN_MESSAGES=$(or $(MESSAGES),5000) ONCEWARD_CAMPAIGN_LEDGER=$(STORE) $(BIN)/python -m pytest -q -s tests/processes/test_campaigns.py -k "[$(BROKER) or of_$(BROKER)"

lint: $(VENV)/installed
	$(BIN)/ruff check --no-cache . # the cache does not see that a module went which an unchanged file imports
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed
	$(BIN)/mypy

# The wheel and the sdist, in dist/, from what is committed: built twice and compared, and checked as their users see them.
dist: $(VENV)/installed
	$(BIN)/python release/dist.py

# public-api.txt, and the schema of pipelines: run it when you have changed what is public.
api: $(VENV)/installed
	$(BIN)/python release/public_api.py
	$(BIN)/python release/pipeline_schema.py

# Each extra in an environment of its own, at the newest and the lowest versions that it allows, and each install line of the pages: half an hour.
install-lines: $(VENV)/installed
	$(BIN)/python release/install_lines.py $(ONLY)

# Each of the planted defects must make one of its tests fail (tests/support/mutants): half an hour. `make mutants ONLY=lease`.
mutants: $(VENV)/installed
	cd tests/support && $(abspath $(BIN))/python -m mutants $(ONLY)

# What is too long for each commit: every test with every value of its parameters, also on a second version of PostgreSQL; those
# of Redis on Valkey 9; an hour of random faults; an hour of histories; the planted defects; the install lines.
VALKEY := tests/conformance/test_conformance_redis.py tests/integration/redis tests/integration/test_redis_streams_worker.py tests/processes/test_redis_failover.py
nightly: $(VENV)/installed
	ONCEWARD_NIGHTLY=1 $(BIN)/python -m pytest -n 6 --dist loadgroup --tb short
	ONCEWARD_REDIS=valkey $(BIN)/python -m pytest -n 6 --dist loadgroup --tb short -k 'not tls' $(VALKEY)
	$(MAKE) --no-print-directory torture SECONDS=3600
	$(MAKE) --no-print-directory histories SECONDS=3600
	$(MAKE) --no-print-directory mutants install-lines

# The docs site, in build/site: open build/site/index.html. `make docs-live` serves it and follows changes.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-live: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch src --watch examples

bench: $(VENV)/installed
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf $(VENV) .demo charges.log build dist
