# Every target sets up .venv by itself (uv when present, otherwise python's own venv).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: setup demo demo-cluster test test-slow bench lint format picture clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) .venv && uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $@

demo: setup
	$(BIN)/dpfastmh demo

demo-cluster: setup
	$(BIN)/python examples/cluster.py

test: setup
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -q -n 2 -m slow

bench: setup
	$(BIN)/python benchmarks/run.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# docs/report.png, anew; needs Chromium
picture: setup
	$(BIN)/python benchmarks/make_report_picture.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis screenshots
