PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ZOO_INSTALLED := $(VENV)/.zoo-installed
DEMO := alexnet_stanza

# Several ranks, or test workers, share this machine's cores.
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test check check-all zoo

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[test]'
	touch $@

# Small pictures keep it short.
demo: $(INSTALLED)
	$(BIN)/stanza-compile examples/alexnet.py -o $(DEMO) --force --input 4x3x64x64:float32 \
		--nodes 3 --strategy separate
	$(BIN)/torchrun --nproc-per-node 3 $(DEMO)/train.py --steps 3
	@echo 'The report is $(DEMO)/report.md'

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -m 'not slow and not gpu'

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(ZOO_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[test,zoo]'
	touch $@

# Whole families of models, each compiled and held against the uncut one: hours.
zoo: $(ZOO_INSTALLED)
	$(BIN)/python -m benchmarks.zoo --family transformers
	$(BIN)/python -m benchmarks.zoo --family timm
	$(BIN)/python -m benchmarks.zoo --family torchvision

check-all: check test zoo
	$(BIN)/python -m pytest -n 2 -m slow
