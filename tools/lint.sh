#!/usr/bin/env bash
# The quick style checks: formatting, Python lint and types, layers. Changes nothing. clang-tidy is `make tidy`.
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
