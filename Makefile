# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow check bench bench-% train-demo clean

demo: .venv/ready
	$(BIN)/patchdemux demo

test: .venv/ready
	$(BIN)/pytest -m "not slow"

test-slow: .venv/ready
	$(BIN)/pytest -m slow

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m benchmarks

# One benchmark: make bench-speed ARGS="--data photos.zip"
bench-%: .venv/ready
	$(BIN)/python -m benchmarks.$* $(ARGS)

train-demo: .venv/ready
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python scripts/train_demo.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
