# Everything that a user types. `make train` and `make test` set up what they need, once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The build that the package index offers; `make setup TORCH="torch==2.13.0" PIP_FLAGS="--index-url …"` chooses one.
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 && echo $$p && break; done)

ENVIRONMENTS := deployments/environments
DRIVER := .venv
EXECUTOR := .venv-executor
PIP := -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)

# A contended two-core machine loses more to a second OpenMP thread than it gains; services set their own counts.
export OMP_NUM_THREADS ?= 1
export PIP_PROGRESS_BAR := off

.PHONY: help setup train serve test conformance lint types drill bench learning clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(DRIVER)/.ready $(EXECUTOR)/.ready ## Create both environments (done by the other targets too)

$(DRIVER)/.ready: pyproject.toml $(ENVIRONMENTS)/driver-constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 found; install one or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 2; }
	@echo "Setting up the driver's environment in $(DRIVER) (some minutes, once) ..."
	$(PYTHON) -m venv $(DRIVER)
	$(DRIVER)/bin/python $(PIP) "$(TORCH)" -c $(ENVIRONMENTS)/driver-constraints.txt
	$(DRIVER)/bin/python $(PIP) -e ".[dev]" "$(TORCH)" -c $(ENVIRONMENTS)/driver-constraints.txt
	@touch $@

$(EXECUTOR)/.ready: $(ENVIRONMENTS)/executor.txt $(ENVIRONMENTS)/executor-constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 found; install one or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 2; }
	@echo "Setting up the executors' environment in $(EXECUTOR) (some minutes, once) ..."
	$(PYTHON) -m venv $(EXECUTOR)
	$(EXECUTOR)/bin/python $(PIP) -r $(ENVIRONMENTS)/executor.txt "$(TORCH)" -c $(ENVIRONMENTS)/executor-constraints.txt
	@touch $@

train: setup ## Prepare, train, evaluate and export with the laptop preset (OUT=dir, FLAGS="--seed 2 ...")
	$(DRIVER)/bin/seeker train --preset laptop $(if $(OUT),--out $(OUT)) $(FLAGS)

serve: setup ## Prefect's server, a worker and the deployments on this machine (FLAGS="--port 4201")
	@exec $(DRIVER)/bin/seeker serve $(FLAGS)

test: setup ## Run the default test suite
	$(DRIVER)/bin/python -m pytest $(FLAGS)

conformance: $(if $(PY),,setup) ## What a Flame 0.6 cluster must do: FLAME_ENDPOINT names one; PY=python with flamepy and pytest
	$(or $(PY),$(DRIVER)/bin/python) -m tests.cluster.conformance $(FLAGS)

lint: setup ## ruff
	$(DRIVER)/bin/ruff check --no-cache .

types: setup ## pyright, strict on seeker/
	$(DRIVER)/bin/pyright

drill: setup ## The long drills with real kills (in CI: SEEKER_DRILL_ROUNDS=20 SEEKER_DRILL_KILLS=10)
	SEEKER_DRILL_ROUNDS=$${SEEKER_DRILL_ROUNDS:-200} SEEKER_DRILL_KILLS=$${SEEKER_DRILL_KILLS:-100} \
		$(DRIVER)/bin/python -m pytest -m drill $(FLAGS)

bench: setup ## Benchmarks, each a ratio in one run
	$(DRIVER)/bin/python -m tests.benchmarks $(FLAGS)

learning: setup ## Three seeds, two starting policies and two controls of the laptop preset (half an hour)
	$(DRIVER)/bin/python -m tests.benchmarks.learning

clean: ## Remove environments, caches and prepared data (runs are kept)
	rm -rf $(DRIVER) $(EXECUTOR) .prefect prepared .pytest_cache .ruff_cache .hypothesis
