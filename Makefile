# Set-up, demo, tests and checks. Needs Python >= 3.11, git and make; everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := demo,serve,hf,eval,dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := src tests $(wildcard benchmarks)
# Side by side with other work, one OpenMP thread is several times faster than two.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo test test-all check bench docs gpu study saturation clean help

setup: $(STAMP)  ## .venv with everything for development; a second run is instant

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Loopwise needs Python >= 3.11; set PYTHON=") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch (once; large)"
	@$(PIP) torch==2.13.0
	@echo "installing loopwise with the extras $(EXTRAS)"
	@$(PIP) torch==2.13.0 -e '.[$(EXTRAS)]'
	@touch $@

demo: setup  ## the main job on the embedded checkpoint; writes build/demo/report.html
	$(BIN)/loopwise demo --out build/demo

test: setup  ## everything quick, README blocks included
	$(BIN)/python -m pytest tests

test-all: setup  ## slow tests too
	$(BIN)/python -m pytest tests -m "not gpu"

check: setup  ## style, types, import layers
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: setup  ## every benchmark with its baselines; records under benchmarks/results
	bash benchmarks/run.sh $(BIN)/loopwise

docs: setup  ## check that every link and file name in the documentation exists
	$(BIN)/python -m pytest tests/unit/test_repository.py

gpu: setup  ## parity tests and benchmarks; at most eight minutes on one CUDA device
	bash benchmarks/gpu.sh

study: setup  ## the whole study on what the repository ships; writes docs/study
	$(BIN)/loopwise study $(notdir $(wildcard src/loopwise/assets/tiny*)) --text factbook=factbook --text puzzles=puzzles --out docs/study

saturation: setup  ## nine runs over training mean and seed, then three of fixed depth; hours, resumable; DATA=folder OUT=folder
	$(BIN)/loopwise train saturation --data $(DATA) --out $(or $(OUT),runs/saturation)/means --sweep depth.mean=2,4,8 --sweep train.seed=0,1,2
	$(BIN)/loopwise train saturation --data $(DATA) --out $(or $(OUT),runs/saturation)/samplers --depth.mean 4 --sweep depth.kind=fixed --sweep train.seed=0,1,2

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

clean:  ## remove what builds and tests left, not the virtual environment
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
