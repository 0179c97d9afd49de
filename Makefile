# The one door. `make` lists the verbs; continuous integration calls the same ones.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
READY := .venv/.ready
SEEDS ?= 10000
SEED0 ?= 0
ARGS ?=

.PHONY: help setup demo test test-unit test-spark crash sim fuzz bench check cover docs tree pins clean ci

help: ## list these verbs
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | awk -F'\t' '{printf "  make %-11s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh
	@touch $(READY)

setup: $(READY) ## make .venv with pinned packages, and find or provide Java 17+

demo: $(READY) ## a PostgreSQL shop followed into tables and views, kill -9, and the proof that nothing was lost
	@$(BIN)/python -m headwater.testing.demo $(ARGS)

test: check ## everything: check, then all tests (17,000 simulator seeds, Spark, servers, crashes)
	$(BIN)/pytest tests -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-unit: $(READY) ## only what needs no Spark and no server: seconds
	$(BIN)/pytest tests -m "not spark and not server and not crash and not slow" $(ARGS)

test-spark: $(READY) ## only what needs a Spark session
	$(BIN)/pytest tests -m spark $(ARGS)

crash: $(READY) ## kill the real process at every named crash point
	$(BIN)/pytest tests -m crash $(ARGS)

sim: $(READY) ## the simulator alone: SEEDS=10000 seeds from SEED0=0
	$(BIN)/python -m headwater.testing.simulator --seeds $(SEEDS) --seed0 $(SEED0) $(ARGS)

fuzz: $(READY) ## random views against their queries: SEEDS=10000 seeds from SEED0=0
	$(BIN)/python -m headwater.testing.fuzz --seeds $(SEEDS) --seed0 $(SEED0) $(ARGS)

bench: $(READY) ## epochs, memory, wire protocol, interactive use, views, their creation, sinks and CDC, each beside a peer or a limit
	@set -e; for bench in bench/epoch.py bench/memory.py bench/pgwire.py bench/interactive.py bench/views.py bench/creating.py bench/sinks.py bench/sinks_sql.py bench/sinks_kafka.py bench/sinks_delta.py bench/sink_outage.py bench/postgres.py bench/mysql.py bench/cdc.py bench/cdc_mysql.py; do $(BIN)/python $$bench $(ARGS); done

check: $(READY) ## ruff, format and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

cover: $(READY) ## branch coverage of the tests that need no server and no crash
	$(BIN)/coverage run -m pytest tests -m "not server and not crash" $(ARGS)
	$(BIN)/coverage report --skip-covered --sort=cover

docs: $(READY) ## write docs/reference and the map in README from the code
	$(BIN)/python scripts/gen_docs.py

tree: $(READY) ## print the map of the package from its module docstrings
	@$(BIN)/python scripts/gen_docs.py --tree

pins: $(READY) ## write constraints.txt from what is installed
	$(BIN)/python scripts/gen_pins.py

clean: ## remove what the other verbs made, .venv included
	rm -rf .venv .tools build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ci: test ## what continuous integration runs
