# `make demo` and `make test` need Python 3.11 or newer and make; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= sample_traces/vllm_trl
# Python compiles what it imports, once. To compile all of torch while it is installed takes a minute.
INSTALL := -m pip install --quiet --no-compile
# An image may forbid bytecode: then every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check test test-all newer services fast faults lint style changed-types format accuracy bench docs pipelines pipelines-frameworks pipelines-vllm cluster record clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24

$(VENV)/.installed: pyproject.toml instrumentation/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlscope needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade "pip>=25.1"
	$(BIN)/python $(INSTALL) --editable instrumentation --editable . --group dev
	@touch $@

demo: $(VENV)/.installed ## analyze a recorded run: a verdict here, the report in report.html
	$(BIN)/rlscope analyze $(DEMO) --output report.html

# One worker more than processors: a test that starts a process or waits for a clock leaves its processor to another.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else "auto")')

# tests/conftest.py puts the slow modules first; xdist would put those with most tests first. Tests share the processors,
# so none needs threads of its own.
PYTEST := OPENBLAS_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(BIN)/python -m pytest --ignore tests/pipelines \
	--numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

check: $(VENV)/.installed ## style, types of changed modules and the fast tests, side by side: before every commit
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target style changed-types fast

test: $(VENV)/.installed ## what needs no torch and no GPU, without more instances of the same: before every push
	$(PYTEST) -m "not nightly and not services"

test-all: $(VENV)/.installed ## every test that needs no torch and no GPU, with many examples of each law: nightly
	$(PYTEST) --hypothesis-profile=many

fast: $(VENV)/.installed ## the tests that are not slow
	$(PYTEST) -m "not slow and not nightly and not services"

# What differs between versions of Python and of what pip installs for them: locks, order of release, last digits.
newer: $(VENV)/.installed ## tests that a newer Python may change; .ci/run sets PYTHON= and VENV= for them
	$(PYTEST) -m "not nightly and not services" tests/trace/test_journals.py tests/model/decode tests/model/numerics \
		tests/test_processors.py tests/test_format.py "tests/test_sample_traces.py::test_the_analysis_is_the_golden_one[fleet]"

services: $(VENV)/.installed ## tests on Prometheus and Alertmanager, and of the packages that are built
	$(PYTEST) -m services $$(grep -rl "mark\.services" --include="test_*.py" tests instrumentation/tests)

faults: $(VENV)/.installed ## 2,000 mutations of recorded runs; what came of them is kept in benchmarks/faults.json
	RLSCOPE_MUTATIONS=2000 RLSCOPE_MUTATIONS_TO=benchmarks/faults.json OPENBLAS_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q tests/faults

lint: style ## style, layers, prose, generated pages and types
	$(BIN)/pyright

# The types of everything take twice as long as all else that make check does.
CHANGED := { git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard; }
changed-types: $(VENV)/.installed ## types of the modules that differ from the last commit
	@$(CHANGED) | grep -E '^(rlscope|instrumentation/rlscope_otel)/.*\.py$$' | xargs -r $(BIN)/pyright

style: $(VENV)/.installed ## style, layers, prose and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/lint_prose.py
	$(BIN)/proselint --config .proselintrc.json check README.md CONTRIBUTING.md AGENTS.md CHANGELOG.md docs

format: $(VENV)/.installed ## rewrite the code in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed ## rewrite the pages made from the code
	$(BIN)/python docs/generate.py

accuracy: $(VENV)/.installed ## the model's errors in short, against those that are kept: fails if one grew by a fifth
	$(BIN)/python benchmarks/accuracy.py

bench: $(VENV)/.installed ## cost of capture and speed of analysis; figures are kept beside the scripts
	$(BIN)/python benchmarks/capture_cost.py
	$(BIN)/python benchmarks/analysis_speed.py --out benchmarks

TORCH_WANTS := examples/pipeline_rl/requirements.txt examples/trl_async/requirements.txt

$(VENV)/.torch: $(VENV)/.installed $(TORCH_WANTS)
	$(BIN)/python $(INSTALL) $(TORCH_WANTS:%=-r %)
	@touch $@

# `make pipelines cluster NIGHTLY=1` runs their nightly cases too.
OF_THE_DAY := $(if $(NIGHTLY),,and not nightly)

pipelines: $(VENV)/.torch ## tests on the real pipelines (installs torch and TRL)
	$(BIN)/python -m pytest tests/pipelines -m "pipelines $(OF_THE_DAY)"
	$(MAKE) pipelines-frameworks

# verl and AReaL want libraries that exclude each other and the ones above: what they really import is listed there. The
# last step compiles it, because .ci/run has a processor to spare while it installs, and none while it tests.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_BIN := $(FRAMEWORKS)/bin
FRAMEWORKS_WANT := tests/pipelines/frameworks/requirements.txt tests/pipelines/frameworks/frameworks.txt

$(FRAMEWORKS)/.installed: $(FRAMEWORKS_WANT) pyproject.toml instrumentation/pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS_BIN)/python $(INSTALL) --upgrade "pip>=25.1"
	$(FRAMEWORKS_BIN)/python $(INSTALL) -r tests/pipelines/frameworks/requirements.txt
	$(FRAMEWORKS_BIN)/python $(INSTALL) --no-deps -r tests/pipelines/frameworks/frameworks.txt
	$(FRAMEWORKS_BIN)/python $(INSTALL) --editable instrumentation --editable .
	$(FRAMEWORKS_BIN)/python -W ignore -c 'import tests.pipelines.frameworks.areal_run, tests.pipelines.frameworks.verl_run'
	@touch $@

pipelines-frameworks: $(FRAMEWORKS)/.installed ## tests on real parts of verl, AReaL and Ray
	$(FRAMEWORKS_BIN)/python -m pytest tests/pipelines/frameworks -m frameworks

cluster: $(FRAMEWORKS)/.installed ## tests on a Ray cluster of two nodes, which they start
	OPENBLAS_NUM_THREADS=1 $(FRAMEWORKS_BIN)/python -m pytest tests/cluster -m "cluster $(OF_THE_DAY)"

# vLLM's CPU build wants a torch of its own, and a torchvision that it brings along does not load with it.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_WANTS := examples/vllm_torch/requirements.txt
VLLM_FITS := import platform, sys; sys.exit((platform.system(), platform.machine(), *sys.version_info[:2]) != ("Linux", "x86_64", 3, 11))

$(VLLM_VENV)/.installed: $(VLLM_WANTS) pyproject.toml instrumentation/pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python $(INSTALL) --upgrade "pip>=25.1"
	$(VLLM_BIN)/python $(INSTALL) $$(grep '^torch==' $(VLLM_WANTS))
	$(VLLM_BIN)/python $(INSTALL) -r $(VLLM_WANTS)
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(VLLM_BIN)/python $(INSTALL) --editable instrumentation --editable . pytest hypothesis "tensorboardX>=2.6"
	@touch $@

pipelines-vllm: ## tests on the real vLLM, CPU build (installs 2.7 GB into .venv-vllm)
	@if $(PYTHON) -c '$(VLLM_FITS)'; then $(MAKE) $(VLLM_VENV)/.installed; fi
	@if $(PYTHON) -c '$(VLLM_FITS)'; then $(VLLM_BIN)/python -m pytest tests/pipelines -m vllm; \
	else echo "skipped: vLLM's CPU build is for Linux x86_64, and its torch here for Python 3.11"; fi

record: $(VENV)/.torch ## record the sample traces again
	PYTHON=$(BIN)/python sample_traces/record.sh

clean: ## remove what the targets made
	rm -rf $(VENV) $(FRAMEWORKS) $(VLLM_VENV) report.html .pytest_cache .ruff_cache .hypothesis
