# Every target sets up .venv by itself (uv when present, otherwise python's own venv), from the exact versions and
# hashes of requirements.lock: nothing that was not locked is run.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: setup lock demo demo-cluster test test-slow bench bench-field docs examples package lint format picture clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@echo "setting up .venv: a minute or two"
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) .venv && install="uv pip install --quiet --python $(BIN)/python"; \
	else \
	  $(PYTHON) -m venv .venv && install="$(BIN)/python -m pip install --quiet --disable-pip-version-check"; \
	fi && \
	$$install --require-hashes -r requirements.lock && \
	$$install --no-deps --no-build-isolation -e .
	@touch $@
	@echo "ready: '. .venv/bin/activate' puts the command dpfastmh at hand"

# After a change of pyproject.toml. Versions stay as they are where they still fit; delete the file to renew them all.
lock:
	@uv=$$(command -v uv) || { \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv && uv=$(BIN)/uv; }; \
	$$uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
	  --custom-compile-command "make lock" -o requirements.lock pyproject.toml

demo: setup
	$(BIN)/dpfastmh demo

demo-cluster: setup
	$(BIN)/python tools/demo_cluster.py

# worksteal: neighbours stay on one worker as long as both are busy, and so compile once what they share
test: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -q -n 2 -m slow

bench: setup
	$(BIN)/python benchmarks/run.py

# hours: peers in an environment of their own, every size; see benchmarks/README.md for single rows
bench-field: setup .venv-peers/.ready
	cd benchmarks && ../$(BIN)/python -m field speed && ../$(BIN)/python -m field quality && ../$(BIN)/python -m field price
	$(BIN)/python benchmarks/interval_coverage.py
	cd benchmarks && ../$(BIN)/python -m field page

.venv-peers/.ready: benchmarks/field/peers.txt
	$(PYTHON) -m venv .venv-peers && .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

docs: setup
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(BIN)/mkdocs build

# the examples' notebooks, made again from the scripts and run
examples: setup
	$(BIN)/python tools/notebooks.py examples/*.py

package: setup
	$(BIN)/python tools/package.py

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
	rm -rf .venv .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis screenshots
