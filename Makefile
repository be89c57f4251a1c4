# The two commands of the README: `make demo` runs the main job, `make test` runs every test.
# PYTHON is the interpreter whose torch is used if it has one; a ROCm or CUDA build is never replaced.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

.PHONY: demo test fast lint bench clean

demo: $(VENV)/.demo
	$(BIN)/madlite run --tags demo

test: $(VENV)/.test
	scripts/test.sh $(BIN)

fast: $(VENV)/.test
	$(BIN)/python -m pytest -x -q

lint: $(VENV)/.test
	scripts/lint.sh $(BIN)

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A virtual environment that sees the interpreter's own packages only where that interpreter has torch.
$(VENV)/.torch:
	scripts/venv.sh $(PYTHON) $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	scripts/debian.sh
	$(PIP) -e '.[demo,dev]'
	touch $@
