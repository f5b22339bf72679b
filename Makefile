# The two commands of the README: `make demo` and `make test`. Everything else is for people who work on this.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
N ?= 6
# `EXTRAS=dev,ray` runs the tests of these extras as well; without, they are skipped, and say so.
EXTRAS ?= dev
comma := ,
DEV := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
# Commas would end an argument of $(if).
CHANNELS ?= text,cache,latent_briefing

.PHONY: demo test test-slow bench docs clean

# DATA=file adds ten items of HotpotQA from a file of yours.
demo: $(VENV)/.installed
	$(BIN)/agentflow compare private_facts -n $(N) --channels $(CHANNELS)
	$(if $(DATA),$(BIN)/agentflow compare hotpotqa --data $(DATA) -n 10 --channels $(CHANNELS))

# Tiny models gain nothing by a second thread: with one the suite takes half the time.
test: export OMP_NUM_THREADS ?= 1
test: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not slow and not gpu"

test-slow: $(DEV)
	$(BIN)/pytest -m "slow and not gpu"

# Benchmarks beside their peers; the last line of each is one JSON object.
bench: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[bench,ray]'
	for name in handover fanout payload trajectory compare latent_briefing c2c lcf scheduler ray; do $(BIN)/python -m benchmarks.$$name || exit 1; done

# The reference pages that are generated from the schema and the help texts.
docs: $(VENV)/.installed
	$(BIN)/python tools/make_reference.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(DEV): $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
