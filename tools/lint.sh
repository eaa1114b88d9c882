#!/usr/bin/env bash
# Every style check: formatting, Python lint and types, layers, clang-tidy. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

step() { printf 'lint: %s\n' "$*"; }

step clang-format
git ls-files -z -co --exclude-standard '*.h' '*.cc' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r clang-format --dry-run -Werror
step ruff
ruff check --quiet tools tests
ruff format --check --quiet tools tests
step mypy
mypy
step layers
python tools/check_layers.py
step clang-tidy
[[ -f build/dev/build.ninja ]] || cmake --preset dev
tools/tidy.sh
