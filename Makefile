# The whole set-up, from a bare Python 3.10 or 3.11: `make test` and `make demo`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: test lint types layers unit long demo clean

test: lint types layers unit

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist worksteal --quiet

long: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist worksteal --quiet -m long

demo: $(READY)
	$(BIN)/mpcvit demo

clean:
	rm -rf $(VENV) build *.egg-info
