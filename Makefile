# `make demo` and `make test` need Python 3.11 or newer and make; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= sample_traces/starved_trainer

.PHONY: help demo test lint format bench docs pipelines record clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml instrumentation/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlscope needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable instrumentation --editable . --group dev
	@touch $@

demo: $(VENV)/.installed ## analyse a recorded run: a verdict here, the page in report.html
	$(BIN)/rlscope analyze $(DEMO) --output report.html

test: $(VENV)/.installed ## everything that needs no torch, no GPU and no network
	$(BIN)/python -m pytest -m "not pipelines and not frameworks and not vllm"

lint: $(VENV)/.installed ## style, types and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.installed ## rewrite the code in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## rewrite the pages made from the code
	$(BIN)/python docs/generate.py

bench: $(VENV)/.installed ## cost of capture and speed of analysis; figures are kept beside the scripts
	$(BIN)/python benchmarks/capture_cost.py
	$(BIN)/python benchmarks/analysis_speed.py --out benchmarks

$(VENV)/.torch: $(VENV)/.installed examples/pipeline_rl/requirements.txt
	$(BIN)/python -m pip install --quiet -r examples/pipeline_rl/requirements.txt
	@touch $@

pipelines: $(VENV)/.torch ## tests on the real pipeline (installs torch)
	$(BIN)/python -m pytest tests/pipelines -m pipelines

record: $(VENV)/.torch ## record the sample traces again
	PYTHON=$(BIN)/python sample_traces/record.sh

clean: ## remove what the targets made
	rm -rf $(VENV) report.html .pytest_cache .ruff_cache .hypothesis
