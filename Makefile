# Everything that contributors and CI run. `make` alone prints the targets.
# Needs make, a POSIX shell and Python 3.11 or newer. `make setup` installs all else into .venv; the targets that need it
# run it first, and it takes no time when nothing has changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
PIP := $(PY) -m pip --disable-pip-version-check --no-input
LOCKED := sh lab/tools/install-locked.sh $(PY)
say = @printf '\033[1m== %s\033[0m\n' $(1)

# Programs of the system come first, then those that lab/tools/install-judges.sh has put into .venv.
export PATH := $(PATH):$(abspath $(BIN))
# Tests start hundreds of Python processes. Without compiled files each of them compiles the package again, and pytest
# every test.
unexport PYTHONDONTWRITEBYTECODE

# STRICT=1: a skipped test is a failed test.   JOBS=n: processes of the test run; two more than the cores of a small
# machine, because many tests wait for other processes.
STRICT ?=
JOBS ?= 4
# PATIENCE=n: factor on the time limits of tests, against a quiet machine (4 by default; use more on a busy one).
PATIENCE ?=
export PATIENCE
# Added to pytest's command line, for example ARGS="-k rollback -x".
ARGS ?=
# The tests of `make test-all`; `make test` leaves out those of tools, benches and documentation.
ALL_TESTS = packages/dcpstream/tests packages/dcpstream-node/tests packages/dcpstream-spark/tests tests lab/tests
PYTEST = $(PY) -m pytest $(if $(filter 1 yes true,$(STRICT)),--strict-skips) --dist loadgroup -n $(JOBS) $(ARGS)
# ROWS=n: number of flights in the demo (all 336,776 by default).
ROWS ?=
# SCENARIOS="s02 s15": scenarios of `make judge` (all by default; about eight minutes).
SCENARIOS ?=
# RELEASE=8.0: the release of the node that `make judge` plays, and so of the recordings (7.2 by default).
RELEASE ?=
# VERSIONS="4.1 4.3": versions of Spark of `make test-spark-matrix` (all by default).
VERSIONS ?=
# RUNS=n: number of kills of `make kill-loop` (200 by default), of moments of `make power-cuts` (600 by default), or of
# rounds of `make cluster-loop` (60 by default).
RUNS ?=
# ROUNDS=n: number of rounds of `make chaos` (20 by default).
ROUNDS ?=
# SEED=n: the draw of guards of `make conformance-mutants`, or the first round of `make chaos` (a new one each time by
# default).
SEED ?=
# SECONDS=n: time of `make fuzz` for each target (60 by default).
SECONDS ?=
# SEEDS=n: number of seeds of `make sim` (1,000 by default), from SEED on (0 by default).
SEEDS ?=

# SERVER=couchbase://host: a server with a bucket `default`, which `make bench-peers` also measures against; for
# `make judge-rules` with its port.
SERVER ?=

# Tools that write the pages of `make reference`.
REFERENCES = message node support user module release

# ---------------------------------------------------------------------------------------------------------- targets

.PHONY: help
help: ## print this help
	@printf 'dcpstream: make TARGET [STRICT=1] [JOBS=n] [PATIENCE=n] [ARGS="..."] [ROWS=n] [RUNS=n] [ROUNDS=n] [SEED=n] [SECONDS=n] [SCENARIOS="s02 s15"] [PYTHON=/path]\n\n'
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@printf '\nThe first run of any of them installs what it needs into $(VENV).\n'

.PHONY: setup
setup: $(STAMPS)/project $(STAMPS)/data java $(STAMPS)/jars ## install everything into .venv (quick when it is there)

.PHONY: check
check: setup ## format, lint, prose, commit subjects, laws, types, dead code, direction of imports
	@$(MAKE) -s --no-print-directory -j 2 check-types check-rest

.PHONY: check-types
check-types:
	$(call say,'types')
	@$(BIN)/mypy

.PHONY: check-rest
check-rest:
	$(call say,'format and lint')
	@$(BIN)/ruff format --check --quiet . || { echo 'run: make format'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(PY) lab/tools/wrap_markdown.py --check
	@$(PY) lab/tools/commit_subjects.py
	$(call say,'laws')
	@$(PY) lab/tools/laws.py
	$(call say,'dead code')
	@$(BIN)/vulture
	$(call say,'direction of imports')
	@$(BIN)/lint-imports --no-cache

.PHONY: dead-code
dead-code: $(STAMPS)/project ## names that nobody uses (lab/tools/dead_code_whitelist.py lists those that others call)
	@$(BIN)/vulture

.PHONY: test
test: $(STAMPS)/project ## check, and the fast tests (what CI runs)
	@$(MAKE) -s --no-print-directory -j 2 check-types fast-tests

# Types are checked meanwhile: mypy uses one core, and neither the rest of the set-up nor the tests use all of two.
.PHONY: fast-tests
fast-tests: setup check-rest
	@sh lab/tools/install-judges.sh $(VENV) tshark
	$(call say,'fast tests')
	@$(PYTEST)

.PHONY: test-all
test-all: check ## check, all tests (also slow ones), and the core on every interpreter found
	$(call say,'all tests')
	@failed=0; \
	HYPOTHESIS_PROFILE=deep $(PYTEST) -m "" --timeout 900 $(ALL_TESTS) || failed=1; \
	$(MAKE) -s --no-print-directory test-matrix || failed=1; \
	exit $$failed

.PHONY: coverage
coverage: setup ## branch coverage of the fast tests: a table by package, and pages in .cache/coverage/html
	@$(PY) lab/tools/branch_coverage.py --dist loadgroup -n $(JOBS) $(ARGS)

.PHONY: browser
browser: setup ## a headless Chromium for the tests of pages, into .venv if the system has none (375 MB)
	@sh lab/tools/install-judges.sh $(VENV) browser

.PHONY: hooks
hooks: setup ## have Git check format, lint, types, imports and subjects at each commit (pre-commit)
	@$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

.PHONY: test-matrix
test-matrix: setup ## the core's tests on every Python found, and without the extras
	@JOBS=$(JOBS) sh lab/tools/test-matrix.sh $(STRICT)

.PHONY: test-spark-matrix
test-spark-matrix: setup ## the source's Spark tests on Spark 4.0 to 4.3 (VERSIONS="4.1 4.3"); writes a page of the reference
	@$(PY) lab/tools/spark_matrix.py $(if $(filter 1 yes true,$(STRICT)),--strict) $(VERSIONS)

.PHONY: demo
demo: setup ## flights of 2013 through a node into two Spark tables, with a kill in the middle (ROWS=n)
	@$(BIN)/dcpstream demo $(if $(ROWS),--rows $(ROWS))

.PHONY: bench-check
bench-check: setup ## has a figure lost more than 15 % of CPU time against lab/bench/expected.json? (ARGS=--store: store again)
	@$(PY) -m lab.bench.check $(ARGS)

.PHONY: bench-peers
bench-peers: setup ## our client and our node compared with others; writes docs/explanation/peers.md (SERVER=couchbase://…)
	@$(PY) -m lab.bench.peers $(if $(SERVER),--server $(SERVER)) $(ARGS)
	@$(PY) -m lab.bench.peer_nodes

.PHONY: bench
bench: setup ## measure, quietly and with two busy programs; writes lab/bench/results.json (40 to 50 min)
	@$(PY) -m lab.bench --under-load 2 $(ARGS)

.PHONY: judge
judge: setup ## run the recorded scenarios against our node and compare with the real server (SCENARIOS=...)
	@$(PY) -m lab.tools.judge $(if $(RELEASE),--release $(RELEASE)) $(SCENARIOS)

.PHONY: judge-rules
judge-rules: setup ## the rules' tests against a server: held, differs, not decidable (SERVER=couchbase://HOST:PORT)
	@$(BIN)/dcpstream judge $(or $(SERVER),$(error which server? SERVER=couchbase://HOST:PORT)) --rules $(ARGS)

.PHONY: interop
interop: setup ## foreign clients (Python, Go, Java, tshark) against a node: a table (ARGS="gocbcore --page")
	@sh lab/tools/install-judges.sh $(VENV) tshark
	@$(PY) -m lab.interop $(if $(filter 1 yes true,$(STRICT)),--strict) $(ARGS)

.PHONY: example
example: setup ## the examples in a fresh virtual environment, with the wheel built from here
	$(call say,'examples')
	@STRICT='$(filter 1 yes true,$(STRICT))' sh lab/tools/example.sh $(PY)

.PHONY: sanitize
sanitize: setup ## tests of the native kernel, built with the address and undefined-behaviour sanitizers
	@$(PY) -m lab.tools.sanitize $(ARGS)

.PHONY: conformance
conformance: setup ## the protocol's rules by area: passes, fails, not covered; writes docs/reference/conformance.md
	@$(PY) lab/tools/conformance.py

.PHONY: conformance-mutants
conformance-mutants: setup ## break 60 guards of the protocol, one at a time, and count those that tests notice (SEED=n)
	@$(PY) lab/tools/mutants.py $(if $(SEED),--seed $(SEED))

.PHONY: kill-loop
kill-loop: setup ## kill a node under load (SIGKILL), again and again, and check its data (RUNS=n, SEED=n)
	@$(PY) lab/tools/kill_loop.py $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))
	@$(PY) -m lab.tools.kill_creation $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))

.PHONY: power-cuts
power-cuts: setup ## cut the power of a node at any of its calls, and check what the disk may hold (RUNS=n, SEED=n; strace)
	@$(PY) lab/tools/power_cuts.py $(if $(RUNS),--cuts $(RUNS)) $(if $(SEED),--seed $(SEED))

.PHONY: cluster-loop
cluster-loop: setup ## rebalance a cluster and fail its nodes over under load, again and again (RUNS=n, SEED=n)
	@$(PY) lab/tools/cluster_loop.py $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))

.PHONY: chaos
chaos: setup ## random trouble for a cluster and for Spark, and a check of every row of the tables (ROUNDS=n, SEED=n)
	@$(PY) -m lab.chaos $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: chaos-mutants
chaos-mutants: setup ## plant bugs in the source and the tables, one at a time, and count those that rounds find
	@$(PY) -m lab.chaos.mutants $(ARGS)

.PHONY: sim
sim: setup ## whole clusters on virtual time from seeds, under the eyes of judges (SEEDS=n, SEED=n)
	@$(PY) -m lab.simulation --seeds $(or $(SEEDS),1000) --first $(or $(SEED),0) --jobs $(JOBS) $(ARGS)

.PHONY: sim-mutants
sim-mutants: setup ## plant bugs in the machines, one at a time, and count those that the simulator's judges find
	@$(PY) -m lab.tools.sim_mutants $(ARGS)

.PHONY: fuzz
fuzz: $(STAMPS)/fuzz ## change inputs of decoders and machines until one breaks a promise (SECONDS=n for each target)
	@$(PY) -m lab.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

.PHONY: docs
docs: $(STAMPS)/docs ## build the documentation into site/
	$(call say,'documentation')
	@NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict
	@echo 'open site/index.html; its search needs a server: python3 -m http.server --directory site'

.PHONY: docs-test
docs-test: setup $(STAMPS)/docs ## build the documentation and run every block of every page (ten minutes)
	@$(PY) -m lab.tools.docs_test --dist loadgroup -n $(JOBS) $(ARGS)

.PHONY: packages
packages: setup ## build wheel and sdist, install each extra into an environment of its own, and use it (needs a network)
	@$(PY) -m lab.tools.packages $(ARGS)

.PHONY: pictures
pictures: setup ## take the pictures of the status pages for the documentation (needs a Chromium: make browser)
	@$(PY) -m lab.tools.page_pictures

.PHONY: three-doors
three-doors: setup ## walk through the README's three doors in empty environments; writes a page (needs a network)
	@$(PY) -m lab.tools.three_doors $(ARGS)

.PHONY: reference
reference: setup ## write the generated pages of the documentation again
	@for page in $(REFERENCES); do $(PY) lab/tools/$${page}_reference.py || exit 1; done && $(PY) lab/tools/state_diagrams.py

.PHONY: format
format: setup ## format the code, wrap the pages, and apply the fixes of the linter
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet . ; $(PY) lab/tools/wrap_markdown.py

.PHONY: lock
lock: ## move requirements/*.lock to the newest versions that pyproject.toml allows
	@python=$$(sh lab/tools/find-python.sh) && sh lab/tools/lock.sh "$$python"

.PHONY: clean
clean: ## remove what was built and installed
	rm -rf $(VENV) .venv-* .cache site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# ----------------------------------------------------------------------------------------------------------- set-up
# One stamp a step; a step runs again when its lock file, or a step before it, is newer.

$(STAMPS)/venv: lab/tools/find-python.sh
	@python=$$(sh lab/tools/find-python.sh) || exit 1; \
	if [ -x $(PY) ] && $(PY) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then :; else \
	    printf '\033[1m== virtual environment in %s (%s)\033[0m\n' '$(VENV)' "$$($$python -V)"; \
	    "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: requirements/build.lock $(STAMPS)/venv
	$(call say,'build tools')
	@$(LOCKED) $<
	@touch $@

$(STAMPS)/dev: requirements/dev.lock $(STAMPS)/build
	$(call say,'locked packages: the first time about 700 MB and a few minutes')
	@$(LOCKED) $<
	@touch $@

PROJECTS = packages/dcpstream packages/dcpstream-node packages/dcpstream-spark examples/demo

$(STAMPS)/project: $(PROJECTS:=/pyproject.toml) $(wildcard native/*) packages/dcpstream/build_kernel.py $(STAMPS)/dev
	$(call say,'the packages themselves (editable)')
	@$(PIP) install --quiet --no-deps --no-build-isolation $(PROJECTS:%=--editable %)
	@printf '   decoder: %s\n' "$$($(PY) -c 'from dcpstream.runtime import kernel; print(kernel.description)')"
	@touch $@

# Packages of which only data files are read: flights, and the rules of axe. Their code is never used, so their
# dependencies are left out. After the packages: of several pips at a time, each could see what another has half installed.
$(STAMPS)/data: requirements/data.lock $(STAMPS)/build | $(STAMPS)/project
	$(call say,'data: flights of 2013; the rules of axe for pages')
	@$(LOCKED) $<
	@touch $@

$(STAMPS)/docs: requirements/docs.lock $(STAMPS)/project
	$(call say,'documentation tools')
	@$(LOCKED) $<
	@touch $@

$(STAMPS)/fuzz: requirements/fuzz.lock $(STAMPS)/project
	$(call say,'the fuzzer (35 MB)')
	@$(LOCKED) $<
	@touch $@

$(STAMPS)/java: requirements/java.lock $(STAMPS)/build
	$(call say,'no Java 17 or newer found: installing one into the virtual environment (38 MB)')
	@$(LOCKED) $<
	@touch $@

# Spark needs a Java runtime. If the machine has none, a wheel brings one for this project alone.
.PHONY: java
java: $(STAMPS)/build | $(STAMPS)/data
	@sh lab/tools/java-version.sh; case $$? in 0) ;; 1) $(MAKE) -s --no-print-directory $(STAMPS)/java ;; *) exit 1 ;; esac

# The jars of Delta for the locked Spark. They lie in a cache that outlives .venv; without a network, the message says
# where to put them.
$(STAMPS)/jars: packages/dcpstream-spark/src/dcpstream_spark/jars.py $(STAMPS)/project | java
	$(call say,'the jars that Spark needs for Delta tables (10 MB)')
	@$(BIN)/dcpstream jars delta
	@touch $@
