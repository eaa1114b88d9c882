#!/usr/bin/env bash
# Builds the tests of the engine and of what is under it with the address and undefined-behaviour sanitizers, then with
# the thread sanitizer, and runs them; tests with random cancels and preemptions run several times as many rounds.
# Usage: tools/sanitize.sh [asan|tsan ...]   KVANT_RANDOM_ROUNDS, JOBS: as many rounds and compilers as they say
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
export KVANT_RANDOM_ROUNDS="${KVANT_RANDOM_ROUNDS:-4}"
# A report ends the run with an error.
export TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"
export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
tests=(kvant_test_unit_core kvant_test_unit_ops kvant_test_unit_engine kvant_test_engine)

(($# > 0)) || set -- asan tsan
for preset in "$@"; do
  [[ -f build/$preset/build.ninja ]] || cmake --preset "$preset"
  cmake --build "build/$preset" -j "${JOBS:-$(nproc)}" --target "${tests[@]}"
  for test in "${tests[@]}"; do
    printf 'sanitize: %s, %s\n' "$preset" "$test"
    "build/$preset/bin/$test" --gtest_brief=1
  done
done
