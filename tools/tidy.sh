#!/usr/bin/env bash
# clang-tidy over the given host sources, or over all of src/ and apps/. Needs a configured build/dev.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ -f build/dev/compile_commands.json ]] || {
  echo "tidy: error: build/dev/compile_commands.json is missing; run: cmake --preset dev" >&2
  exit 1
}
files=("$@")
if ((!${#files[@]})); then
  # Without the toolkit there is nothing to check CUDA's host code against.
  skip='^$'
  command -v nvcc >/dev/null || skip='^src/(core/device_cuda|attn/cuda/(append|backend))\.cc$'
  mapfile -t files < <(git ls-files 'src/*.cc' 'apps/*.cc' | grep -Ev "$skip")
fi

# The build is gcc's: clang knows neither all of its warning flags nor its cache's.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings generated' >&2)
echo "tidy: ${#files[@]} files ok"
