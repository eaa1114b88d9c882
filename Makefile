# Every target sets up what it needs. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The pinned cmake and ninja of .venv come first.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
MODEL := build/models/SmolLM2-135M-Instruct.gguf
CXX_FILES = $$(git ls-files -co --exclude-standard '*.h' '*.cc' '*.cpp' '*.cu' '*.cuh')

.PHONY: help setup build model vocabularies demo test sanitize format lint tidy install clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: ## Install missing Debian packages (root) and Python packages (.venv)
	@tools/setup.sh

build: setup ## Build build/bin/kvant, optimised
	@[[ -f build/release/build.ninja ]] || cmake --preset release
	@cmake --build build/release -j $(JOBS)
	@mkdir -p build/bin && ln -sfn ../release/bin/kvant build/bin/kvant

model: setup ## Fetch SmolLM2-135M-Instruct (98 MB) to build/models
	@python tools/fetch_model.py

vocabularies: setup ## Fetch public vocabularies and templates (37 MB), which two more tests then compare
	@python tools/fetch_vocabularies.py

demo: build model ## Ask a small model a question with an NVFP4 cache
	@echo
	build/bin/kvant run $(MODEL) --kv nvfp4 --prompt "What is the capital of France?"

test: setup model ## Build and run every test that needs no GPU
	@[[ -f build/dev/build.ninja ]] || cmake --preset dev
	@cmake --build build/dev -j $(JOBS)
	@ctest --test-dir build/dev -L '^(fast|model)$$' --output-on-failure -j $(JOBS)

sanitize: setup ## Engine tests under the address, undefined-behaviour and thread sanitizers (an hour or more on 2 cores)
	@tools/sanitize.sh

format: setup ## Rewrite C++ and Python in the project's style
	@clang-format -i $(CXX_FILES)
	@ruff format tools tests

lint: setup ## Style and layer checks, as CI runs them
	@tools/lint.sh

tidy: setup ## clang-tidy over all host sources (a quarter of an hour on 2 cores)
	@[[ -f build/dev/build.ninja ]] || cmake --preset dev
	@tools/tidy.sh

install: build ## Install library, headers, CMake package and binary to PREFIX (default /usr/local)
	@cmake --install build/release --prefix $(PREFIX)

clean: ## Remove what was built (keeps models and .venv)
	@rm -rf build/dev build/release build/asan build/tsan build/bin
