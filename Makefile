# One entry for people and for CI. `make` alone explains the targets.
EXTRA ?= cpu
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint types format bench-serving docs lock clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  EXTRA=gpu     the vLLM build for NVIDIA GPUs (default: cpu)"
	@echo "  PYTHON=...    any Python 3; a 3.11 or 3.12 is then looked for"
	@echo '  ARGS="..."    more arguments for demo, test, test-slow and bench-serving'

setup: ## Build .venv; quick when nothing changed
	@$(PYTHON) scripts/setup.py --extra $(EXTRA)

demo: setup ## Start the whole stack, ask it a few questions, show what was kept
	@$(BIN)/ratchet demo $(ARGS)

test: setup ## Run every test but the slow ones
	@$(BIN)/pytest -m "not slow" $(ARGS)

test-slow: setup ## Run the tests that take minutes each
	@$(BIN)/pytest -m slow $(ARGS)

lint: setup ## Check style, formatting and the borders between packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: setup ## Check types
	@$(BIN)/pyright

format: setup ## Rewrite files in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench-serving: setup ## Measure the gateway beside its own engine
	@$(BIN)/python -m benchmarks.serving $(ARGS)

docs: setup ## Write the reference tables in docs/ anew from the code
	@$(BIN)/python -m scripts.reference

lock: setup ## Write constraints/$(EXTRA).txt anew from pyproject.toml and what .venv holds
	@$(BIN)/python scripts/lock.py --extra $(EXTRA)

clean: ## Remove caches and build results; .venv and the data folder stay
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache benchmarks/out
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
