# Everything that is built or cached lies in build/ (and dist/ for wheels), so
# that `rm -rf build dist` is a fresh clone. Needs Go, Python >= 3.10 and make;
# the network is used for Go modules and PyPI alone.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# PYTHON makes build/venv; ARCH is what `make wheel` builds for; JOBS test files
# run side by side: they wait more than they compute.
PYTHON  ?= python3
ARCH    ?= amd64
JOBS    ?= 2
VERSION := $(shell sed -n 's/^__version__ *= *"\(.*\)"/\1/p' python/muster/_version.py)

GOLANGCI_VERSION := v2.13.2

VENV     := build/venv
# RAY=2.54.0 runs what needs Ray with another release of it, in an environment of its own.
RAY_USUAL := 2.60.*
RAY       ?= $(RAY_USUAL)
VENV_RAY  := build/venv-ray$(if $(filter-out $(RAY_USUAL),$(RAY)),-$(RAY))
VENV_TORCH := build/venv-torch
PY       := $(VENV)/bin/python
LDFLAGS  := -s -w -X github.com/muster-rl/muster/wire.Release=$(VERSION)
# Without cgo and without paths of this machine, so that a binary runs on any
# Linux of its architecture and the same tree gives the same bytes.
GO_BUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
PY_TREES := conftest.py python/muster python/tests e2e examples bench chaos

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- building ---------------------------------------------------------------

.PHONY: build
build: ## build/muster, and a copy where the Python package looks for it
	@command -v go >/dev/null || { echo "make build needs Go (see go.mod for the version): https://go.dev/dl" >&2; exit 1; }
	@mkdir -p build python/muster/_bin
	@$(GO_BUILD) -o build/muster ./cmd/muster
	@cmp -s build/muster python/muster/_bin/muster || install -m 755 build/muster python/muster/_bin/muster

.PHONY: venv
venv: build $(VENV)/.ready ## build/venv/bin/python with the SDK, numpy, pyarrow and the test tools
	@$(PY) -m compileall -q python/muster # as .ci/install does for all else

$(VENV)/.ready: python/pyproject.toml python/requirements-dev.txt python/muster/_version.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else f"Muster needs Python 3.10 or newer, {sys.executable} is {v.major}.{v.minor}: name another with make PYTHON=...")'
	@echo "making $(VENV) from $$($(PYTHON) --version)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; Debian keeps it in the package python3-venv" >&2; exit 1; }
	@.ci/install $(VENV) -r python/requirements-dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -e 'python[arrow]'
	@touch $@

.PHONY: wheel
wheel: $(VENV)/.ready ## dist/muster-VERSION-py3-none-manylinux_2_17_*.whl with the binary inside (ARCH=amd64 or arm64)
	@case "$(ARCH)" in amd64) p=x86_64;; arm64) p=aarch64;; *) echo "ARCH is amd64 or arm64, not '$(ARCH)'" >&2; exit 1;; esac; \
	stage=build/wheel/$(ARCH); rm -rf "$$stage"; mkdir -p "$$stage" dist; \
	cp -RL python/pyproject.toml python/setup.py python/LICENSE python/README.md python/muster "$$stage"; \
	find "$$stage" -name __pycache__ -prune -exec rm -rf {} +; \
	rm -rf "$$stage/muster/_bin"; GOOS=linux GOARCH=$(ARCH) $(GO_BUILD) -o "$$stage/muster/_bin/muster" ./cmd/muster; \
	find "$$stage" -type d -exec chmod 755 {} +; find "$$stage" -type f -exec chmod 644 {} +; chmod 755 "$$stage/muster/_bin/muster"; \
	SOURCE_DATE_EPOCH=1735689600 MUSTER_WHEEL_PLATFORM=manylinux_2_17_$$p \
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist "./$$stage"; \
	ls -1 dist/muster-$(VERSION)-py3-none-manylinux_2_17_$$p.whl

.PHONY: generate
generate: ## run every go:generate (message codecs)
	@go generate ./...

.PHONY: generate-check
generate-check: ## fail if `make generate` would change a file
	@.ci/generate-check

# --- seeing it --------------------------------------------------------------

.PHONY: demo
demo: venv ## a small PPO-shaped loop over 4 x 8 virtual GPUs, drawn in the terminal
	@$(PY) examples/demo/main.py

.PHONY: bench
bench: venv ## Muster, Ray, Monarch and the floor in one run, into docs/benchmarks.* (tens of minutes; BENCH_ARGS=--no-torch saves 5 GB)
	@$(PY) bench/run.py --publish $(BENCH_ARGS)

.PHONY: bench-quick
bench-quick: venv ## the same in about three minutes, into build/bench: fewer rounds, no 256 workers, no torch
	@$(PY) bench/run.py --quick $(BENCH_ARGS)

.PHONY: bench-batch
bench-batch: venv ## batches alone, 64 and 256 MiB, into build/bench (BENCH_ARGS="--systems muster,floor" leaves Ray out)
	@$(PY) bench/run.py --quick --cases batches $(BENCH_ARGS)

.PHONY: bench-hosts
bench-hosts: venv $(VENV_RAY)/.ready ## three hosts out of namespaces, Muster beside plain Ray actors, into docs/hosts.json and docs/benchmarks.md (under 12 minutes; needs root)
	@$(VENV_RAY)/bin/python bench/run_hosts.py --publish $(BENCH_ARGS)

.PHONY: soak
soak: venv ## 1,000 steps of 256 MiB, after which no process has more memory, descriptors or segments (SOAK_ARGS="--steps 100")
	@$(PY) bench/soak.py $(SOAK_ARGS)

.PHONY: bench-go
bench-go: ## Go benchmarks of the hot paths, with allocations per call
	@go test -run '^$$' -bench . -benchmem ./wire ./dispatch ./call ./head ./store

.PHONY: bench-sim
bench-sim: ## the head with up to 10,000 simulated workers, and how its costs grow, into build/bench
	@go run ./bench/sim -check $(SIM_ARGS)

# --- checking ---------------------------------------------------------------

.PHONY: test
test: test-go sim test-py test-e2e ## all tests: Go, Python, and whole programs end to end

.PHONY: test-go
test-go: venv ## Go tests with the race detector, the import rules (arch_test.go) included
	@.ci/go-test ./...

.PHONY: sim
sim: ## calls, dispatch and leases through random faults, on a virtual clock (SEEDS=1000 from SEED=0 on; SCRIPT= a file with what a seed printed)
	@go test ./sim -count=1 -timeout 20m -run '^TestSeeds$$' -seeds $(or $(SEEDS),1000) -seed $(or $(SEED),0) $(if $(SCRIPT),-v -script $(abspath $(SCRIPT)))

.PHONY: test-py
test-py: venv ## Python tests of the SDK, the worker runtime, the benchmark's harness and chaos's rules
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS) python/tests bench/tests chaos/tests

.PHONY: test-e2e
test-e2e: venv ## whole programs: scripts, endings, the wheel, every command of the docs; without those that need Ray (test-ray)
	$(PY) -m pytest -n $(JOBS) --dist loadfile -m "not ray" $(PYTEST_ARGS) e2e

.PHONY: test-pythons
test-pythons: venv ## the SDK's tests on every other Python that is here (ONLY="3.10 3.13" picks)
	@.ci/pythons

.PHONY: test-ray
test-ray: venv $(VENV_RAY)/.ready ## the tests with real Ray, a Ray node per network namespace (needs root; TESTS= picks files, RAY=2.54.0 another release)
	MUSTER_REQUIRE="$${MUSTER_REQUIRE:+$$MUSTER_REQUIRE,}hosts,ray" $(VENV_RAY)/bin/python -m pytest -m ray $(PYTEST_ARGS) $(or $(TESTS),e2e)

$(VENV_RAY)/.ready: python/pyproject.toml python/requirements-dev.txt python/muster/_version.py
	@echo "making $(VENV_RAY) with Ray $(RAY), once (0.6 GB)"
	@[ -x $(VENV_RAY)/bin/python ] || $(PYTHON) -m venv $(VENV_RAY) || { rm -rf $(VENV_RAY); exit 1; }
	@.ci/install $(VENV_RAY) -r python/requirements-dev.txt 'ray[default]==$(RAY)'
	@$(VENV_RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e 'python[arrow]'
	@touch $@

.PHONY: test-torch
test-torch: venv $(VENV_TORCH)/.ready ## the tests that need torch, tensordict or data frames: tensors and frames of batches, ROLL's and AReaL's interfaces (TESTS= picks files)
	frames=$$($(VENV_TORCH)/bin/python -c 'import sys; print(",polars,duckdb,pandas,datasets" * (sys.version_info >= (3, 11)))'); \
	MUSTER_REQUIRE="$${MUSTER_REQUIRE:+$$MUSTER_REQUIRE,torch$$frames}" $(VENV_TORCH)/bin/python -m pytest -n $(JOBS) --dist loadfile -m "not ray" $(PYTEST_ARGS) $(or $(TESTS),$(TORCH_TESTS))

TORCH_TESTS := $(addprefix python/tests/,test_batch_torch.py test_batch_cuda.py test_batch_frames.py test_batch_property.py test_columns.py test_values.py) $(wildcard python/tests/compat e2e/compat_*_test.py)

$(VENV_TORCH)/.ready: python/pyproject.toml python/requirements-dev.txt python/requirements-torch.txt python/muster/_version.py
	@echo "making $(VENV_TORCH) with torch, tensordict, polars, duckdb, pandas and datasets, once (6.1 GB)"
	@[ -x $(VENV_TORCH)/bin/python ] || $(PYTHON) -m venv $(VENV_TORCH) || { rm -rf $(VENV_TORCH); exit 1; }
	@.ci/install $(VENV_TORCH) -r python/requirements-dev.txt -r python/requirements-torch.txt
	@$(VENV_TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e 'python[arrow]'
	@touch $@

.PHONY: test-web
test-web: ## the web page (nothing to test yet: web/ does not exist)
	@echo "There is no web page in this tree yet, so there is nothing to test."

.PHONY: chaos
chaos: venv ## random calls under random faults, held against the rules (SEED= of the first round, SECONDS=600, ROUNDS= at most)
	@$(PY) -m chaos $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),600) $(if $(ROUNDS),--rounds $(ROUNDS)) $(CHAOS_ARGS)

.PHONY: test-kills
test-kills: venv ## the end-to-end tests that kill processes, over and over (ROUNDS=20)
	@for i in $$(seq $${ROUNDS:-20}); do echo "round $$i"; $(PY) -m pytest -q -m chaos $(PYTEST_ARGS) e2e python/tests; done

.PHONY: lint
lint: lint-go lint-py ## golangci-lint, ruff and mypy strict, all pinned

.PHONY: lint-go
lint-go: build/bin/golangci-lint-$(GOLANGCI_VERSION)
	@# With some packages cached and others changed, it now and then loses a standard
	@# package ("returned nil but no error"); what it finds from nothing is true.
	@export GOLANGCI_LINT_CACHE=$(CURDIR)/build/golangci_cache; \
	$< run ./... >build/lint-go.log 2>&1 || { $< cache clean; $< run ./...; }

.PHONY: lint-py
lint-py: $(VENV)/.ready
	$(VENV)/bin/ruff check $(PY_TREES) python/setup.py
	$(VENV)/bin/ruff format --check $(PY_TREES) python/setup.py
	$(VENV)/bin/mypy $(PY_TREES)

build/bin/golangci-lint-$(GOLANGCI_VERSION):
	@echo "building golangci-lint $(GOLANGCI_VERSION), once"
	@mkdir -p build/bin
	@GOBIN=$(CURDIR)/build/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv build/bin/golangci-lint $@

.PHONY: format
format: $(VENV)/.ready ## gofmt and ruff format, in place
	gofmt -l -w $$(git ls-files '*.go')
	$(VENV)/bin/ruff check --fix $(PY_TREES)
	$(VENV)/bin/ruff format $(PY_TREES)
