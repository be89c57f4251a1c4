# The two commands of the README: `make demo` runs the main job, `make test` what has to hold of every change.
# CONTRIBUTING.md says what belongs to which tier of tests.
# PYTHON is the interpreter whose torch is used if it has one; a ROCm or CUDA build is never replaced.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# tests start madlite a thousand times: what Python compiled is kept, whatever the caller prefers
unexport PYTHONDONTWRITEBYTECODE
TUNE := $(dir $(VENV)).venv-torchtune
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

.PHONY: demo demo-torchtune setup fast test test-all coverage lint kubernetes chaos bench release clean

demo: $(VENV)/.demo
	$(BIN)/madlite run --tags demo

# torchtune and PEFT exclude each other: an environment of its own, with the same torch
demo-torchtune: $(VENV)/.torchtune
	$(BIN)/madlite run --tags torchtune_tiny_full,torchtune_tiny_lora --runtime host \
	  --set env.MADLITE_PYTHON=$(abspath $(TUNE))/bin/python

setup: $(VENV)/.test

fast: setup
	$(BIN)/python -m pytest -x -q -n $$(nproc) --dist worksteal

test: setup
	scripts/test.sh $(BIN) ci

test-all: setup
	scripts/test.sh $(BIN) all

coverage: setup
	scripts/coverage.sh $(BIN)

lint: setup
	scripts/lint.sh $(BIN)

# a real control plane: a quarter of an hour to build it, once, then three minutes
kubernetes: setup
	scripts/kubernetes.sh "$${XDG_CACHE_HOME:-$$HOME/.cache}/madlite-tests/kubernetes"
	$(BIN)/python -m pytest -q -n 0 -m kubernetes tests/control_plane

# attacks runs at random moments; SEED=… RUNS=1 repeats a round
chaos: setup
	$(BIN)/python -m tests.chaos --runs $(or $(RUNS),200) --seed $(or $(SEED),1)

bench: setup
	$(BIN)/python -m benchmarks

# what is published of this commit, in dist/; uploads nothing
release: setup
	scripts/release.sh $(BIN)

clean:
	rm -rf $(VENV) $(TUNE) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A virtual environment that sees the interpreter's own packages only where that interpreter has torch.
$(VENV)/.torch:
	scripts/venv.sh $(PYTHON) $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.torchtune: $(VENV)/.demo scripts/torchtune.sh
	scripts/torchtune.sh $(VENV) $(TUNE)
	touch $@

$(VENV)/.test: $(VENV)/.demo $(VENV)/.torchtune
	scripts/debian.sh
	$(PIP) -e '.[demo,dev]'
	$(BIN)/python -m tests.engine_fixture
	touch $@
