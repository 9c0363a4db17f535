# A thin front for CMake and the test runner. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
MAKEFLAGS += --no-print-directory

BUILD ?= build
OUT ?= $(BUILD)/out
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
# Which Python runs the client and its tests: unset sets up .venv, a path takes that one, `none` leaves Python out.
PYTHON ?=
# What the targets `verify` and `fuzz` do; `make test` has shorter runs of both.
RANDOM_PROBLEMS ?= 20000
SEED ?= 7
FUZZ_SECONDS ?= 60

RUN = BUILD=$(BUILD) JOBS=$(JOBS) OUT=$(OUT) SEED=$(SEED) tests/run.sh
WEFT_PY = WEFT_LIBRARY=$(abspath $(BUILD))/libweft_torch.so PYTHONPATH=python$${PYTHONPATH:+:$$PYTHONPATH} $$(cat $(BUILD)/python) -m weft
problems = $$(sed 's/\#.*//' bench/$(1).txt)
export PYTHON

.DEFAULT_GOAL := all
.PHONY: all venv ready test slow demo bench regret asan tsan valgrind fuzz verify gpu-test gpu-slow gpu-bench install format clean help

all: ## build the libraries, the command, the tests and the PyTorch binding into build/
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	+@cmake --build $(BUILD) $(if $(findstring jobserver,$(MAKEFLAGS)),,-j $(JOBS))

venv: ## set up the Python environment in .venv: torch, pytest, NVRTC
	@BUILD=$(BUILD) tests/venv.sh

ready: # both at once: one waits for the network, the other for the compiler
	@BUILD=$(BUILD) tests/venv.sh & venv=$$!; $(MAKE) all; built=$$?; wait $$venv && exit $$built

test: ## run every tier of tests; the last line is "N passed, N failed, N skipped"
	@$(RUN)

slow: ## the same in full, an hour or two: every sample of PyTorch's tests, every size of the sweeps, every NVRTC instance
	@WEFT_SLOW=1 RANDOM_PROBLEMS=$(RANDOM_PROBLEMS) FUZZ_SECONDS=$(FUZZ_SECONDS) $(RUN)

demo: ready ## build, then show torch beside weft on this machine: a table, and the page report.html
	@$(WEFT_PY) demo

bench: ready ## time the cases of bench/cpu.txt beside torch, name what fell against bench/record-cpu.json; rows to $(OUT)/cpu.json
	@mkdir -p $(OUT)
	@$(WEFT_PY) bench --json $(OUT)/cpu.json $(if $(wildcard bench/record-cpu.json),--against bench/record-cpu.json) --set cpu

regret: ready ## the planner's choices beside the better of weft's kernels and torch, over bench/regret.txt
	@$(WEFT_PY) bench --set regret

asan: ## the C tests under AddressSanitizer and UBSan
	@$(RUN) asan

tsan: ## the thread tests under ThreadSanitizer
	@$(RUN) tsan

valgrind: ## 200 random problems under valgrind
	@$(RUN) valgrind

fuzz: ## fuzz the parsers for FUZZ_SECONDS (60) each
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(RUN) fuzz

verify: all ## check RANDOM_PROBLEMS (20000) random problems against the reference
	@$(BUILD)/weft verify --random $(RANDOM_PROBLEMS) --seed $(SEED)

gpu-test: ## on a machine with a GPU, offline, with its python3: the CUDA tiers; logs to $(OUT)
	@PYTHON=$(or $(PYTHON),python3) WEFT_TEST_DEVICE=cuda $(RUN) gpu python torch package

gpu-slow: ## on a machine with a GPU: compute-sanitizer's memcheck and racecheck, and random problems, side by side; 5 minutes
	@PYTHON=$(or $(PYTHON),python3) $(RUN) gpu_memcheck gpu_racecheck gpu_random

gpu-bench: export PYTHON := $(or $(PYTHON),python3)
gpu-bench: ready ## on a machine with a GPU, offline, with its python3: weft beside torch, 5 minutes; rows and logs to $(OUT)
	@mkdir -p $(OUT)
	@timeout 280 env $(WEFT_PY) bench --rounds 7 --json $(OUT)/gpu.json $(call problems,gpu) 2>&1 | tee $(OUT)/gpu-bench.log
	@WEFT_NVRTC=$${WEFT_NVRTC:-$$(cat $(BUILD)/nvrtc)} timeout 75 $(BUILD)/gpu_smoke 0 2>&1 | tee $(OUT)/gpu_smoke.log

install: all ## install under PREFIX (/usr/local); DESTDIR is honoured
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX)

format: venv ## clang-format every C source, with the version that `make test` checks with
	@git ls-files '*.c' '*.h' '*.cu' | xargs .venv/bin/clang-format -i

clean: ## remove what the targets above made, except .venv
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan report.html

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1|\2/p' Makefile | sed 's|$$(OUT)|$(OUT)|g' | awk -F'|' '{printf "%-13s %s\n", $$1, $$2}'
