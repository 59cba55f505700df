# Everything one does with this repository. `make` alone lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo up test captures boards proof mutants bench packing lint format types imports docs check clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(BIN)/quintal ## make .venv and install everything into it

$(BIN)/quintal: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: install ## the main job on a fleet of many vendors, from request to bill, in a minute or two
	$(BIN)/quintal demo

up: install ## a whole system on this machine, with the demo's fleet, until Ctrl-C
	$(BIN)/quintal up --demo

test: install ## all tests; prints how many touched the real server and engine, and each skip
	$(BIN)/python -m pytest

captures: install ## a row per captured output beside the checkout: what is read of it
	$(BIN)/python -m tests.shared.captures

boards: install ## each panel of the dashboards over demo data: rows, first values
	$(BIN)/python -m tests.metering.boards

proof: install mutants ## the mutants, then the long forms: histories and chaos, with their seeds
	QUINTAL_PROOF=1 $(BIN)/python -m pytest -m "laws or chaos or crash" --timeout 3600

mutants: install ## break each law and rule on purpose, in a copy, and see its test fail
	$(BIN)/python -m tests.mutants.run

bench: install ## each figure beside its bound
	$(BIN)/python -m tests.bench

packing: install ## the public trace by its protocol, published figures beside ours; half an hour
	$(BIN)/python -m tests.bench.packing

lint: install ## habits and form
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## bring the form in order
	$(BIN)/ruff format .

types: install ## strict types
	$(BIN)/mypy

imports: install ## who may import whom
	$(BIN)/lint-imports

docs: install ## what is generated: the AsyncAPI document, docs/explain.md, an example configuration
	$(BIN)/python -m quintal.contracts.asyncapi > docs/asyncapi.yaml
	$(BIN)/python -m tests.placer.explained > docs/explain.md.new && mv docs/explain.md.new docs/explain.md
	$(BIN)/python -m quintal.up.example > deploy/nats/nats-server.conf

check: lint types imports test ## all that CI runs

clean: ## forget what was built; quintal-data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
