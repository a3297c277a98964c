# Everything a newcomer needs: `make demo` shows what gradwire gains, `make test` passes the tests. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt $(wildcard packages/*/pyproject.toml) packages/gradwire/CMakeLists.txt $(shell find packages/gradwire/native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: help setup demo reproduce test test-core coverage faults faults-nightly foreign gateware docs docs-browser reports-browser measured figures lint types layers check sanitize aarch64 release bench clean

help: ## show these targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: .venv/ready ## make .venv with gradwire and all tools of its tests in it, 3 GB (needs python3, gcc and make)

.venv/ready: $(SOURCES) scripts/setup
	@PYTHON=$(PYTHON) scripts/setup all
	@touch .venv/demo-ready $@

.venv/demo-ready: $(SOURCES) scripts/setup # a part of what .venv/ready stands for
	@PYTHON=$(PYTHON) scripts/setup demo
	@touch $@

demo: .venv/demo-ready ## compare gradwire with plain DDP and its bf16 hook on four hosts, in under four minutes
	@$(BIN)/gradwire demo --out runs/demo --overwrite

reproduce: .venv/ready ## the papers' tables and figures, measured beside published, in 15 minutes
	$(BIN)/gradwire reproduce --quick

# A worker that ends stops the tests: pytest-xdist 3.8 may wait forever for its replacement (pytest-dev/pytest-xdist#1378).
TESTS := $(BIN)/python -m pytest -n 4 --dist loadscope --max-worker-restart 0
unexport PYTHONDONTWRITEBYTECODE # each of hundreds of processes would compile gradwire and its tests anew

test: .venv/ready ## the test suite of all packages, on four workers (17 minutes on two cores)
	@echo "make test: all tests of the three packages, pages and scripts: 17 minutes on two cores; make test-core: under 4"
	$(TESTS)

UNGUARDED := -o faulthandler_timeout=0 # for targets whose tests take hours each

BATTERIES := faults foreign learning situations # whole trainings: minutes

test-core: .venv/ready ## the tests of the core, as where it is installed alone, without its batteries (under 4 minutes)
	@echo "make test-core: the tests of the core without $(BATTERIES): under 4 minutes on two cores"
	$(TESTS) --core-alone packages/gradwire/tests $(BATTERIES:%=--ignore=packages/gradwire/tests/%)

coverage: .venv/ready ## the test suite, and what of each room it runs (build/coverage.json)
	$(TESTS) --cov --cov-report=json:build/coverage.json
	$(BIN)/python scripts/check_coverage.py build/coverage.json

faults: .venv/ready ## the fault matrix, 20 runs of each new cell and 3 of the others, and the elastic restart
	GRADWIRE_FAULT_REPEATS=3 GRADWIRE_FAULT_NEW_REPEATS=20 $(BIN)/python -m pytest $(UNGUARDED) packages/gradwire/tests/faults

faults-nightly: .venv/ready ## the same with 20 runs of each cell, and 200 ends of every kind
	GRADWIRE_FAULT_REPEATS=20 GRADWIRE_ENDS=200 $(BIN)/python -m pytest $(UNGUARDED) packages/gradwire/tests/faults packages/gradwire/tests/sync/test_endings.py

foreign: .venv/ready ## PyTorch's own DDP tests, with gradwire attached in DDP's constructor
	$(BIN)/python packages/gradwire/tests/foreign/run.py

gateware: .venv/ready ## every block: all codecs, widths and stalls, a million values for each codec and width; all proofs (an hour)
	GRADWIRE_GATEWARE_VALUES=6000 $(TESTS) $(UNGUARDED) --timeout 1800 packages/gradwire-gateware/tests

docs: .venv/ready ## the documentation as a site, in build/docs
	$(BIN)/python -m sphinx -q -E -a -W --keep-going -b html docs build/docs

docs-browser: docs ## look at the site in Chromium: accessibility, widths, pictures in build/browse
	$(BIN)/python scripts/browse.py build/docs --out build/browse

reports-browser: .venv/ready ## reports in Chromium: click through them, and axe-core's rules (needs the group browser)
	$(BIN)/gradwire doctor --json build/reports/doctor.json --overwrite
	$(BIN)/gradwire plan --model 25.6M --hosts 8 --rate 1gbit --json build/reports/plan.json --overwrite
	$(BIN)/gradwire bench allreduce --codecs identity,fp8 --iterations 3 --json build/reports/bench.json --overwrite
	$(BIN)/gradwire train --runs sync,pipe --workers 2 --epochs 1 --out build/reports/train --overwrite
	$(BIN)/gradwire reproduce study-section-1-firecaffe --out build/reports/reproduce --overwrite
	$(BIN)/python scripts/browse.py build/reports --out build/browse
	$(BIN)/python scripts/click_reports.py build/reports

measured: .venv/ready ## measure the figures of the documentation on this machine (an hour), and write their tables
	$(BIN)/python scripts/figures.py measure
	$(BIN)/python scripts/figures.py write

figures: .venv/ready ## write the documentation's tables and charts from the records in docs/measured
	$(BIN)/python scripts/figures.py write

lint: .venv/ready ## format, lint, spelling, prose, the Dockerfile, and figures without a record
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/check_prose.py
	$(BIN)/python scripts/figures.py check
	$(BIN)/hadolint Dockerfile
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs examples packages tests bench scripts

types: .venv/ready ## strict types, and nothing in the packages that Python 3.10 lacks
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 $(wildcard packages/*/src)

layers: .venv/ready ## who may import whom, how long a file may be, and which test belongs to which module
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/python scripts/check_tests.py

check: lint types layers ## everything that needs no run

sanitize: .venv/ready ## fuzz the decoders under the address, undefined-behaviour and thread sanitizers
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/sanitize

aarch64: .venv/ready ## the kernels of aarch64 in an emulator: golden vectors, and the same payloads as here
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/aarch64

release: ## sdist, wheel, bill of materials and checksums in dist/, the wheel tried without a compiler
	PYTHON=$(PYTHON) scripts/release

bench: .venv/ready ## every codec and target against memcpy
	$(BIN)/python bench/codecs.py

clean: ## remove what was built (not .venv)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
