#!/usr/bin/env bash
# Installs what kvant needs to build and test: Debian packages (as root) and pinned Python packages in .venv.
# Safe to run again; takes well under a second when nothing is missing. With --browser also Chromium, which the tests of
# the server's page need (350 MB); they are skipped without it.
set -euo pipefail
cd "$(dirname "$0")/.."

DEBIAN_PACKAGES=(
  g++ make git ccache pkg-config python3 python3-venv
  libhwy-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libexpected-dev libpcre2-dev libutf8proc-dev libcli11-dev libcpp-httplib-dev
  libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy
)

if [[ "${1:-}" == --browser ]]; then
  DEBIAN_PACKAGES+=(chromium)
fi
readonly DEBIAN_PACKAGES

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

missing_debian_packages() {
  local package
  for package in "${DEBIAN_PACKAGES[@]}"; do
    # ${Status} is dpkg's own field, not a shell variable.
    # shellcheck disable=SC2016
    [[ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" == 'install ok installed' ]] || echo "$package"
  done
}

install_debian_packages() {
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here: provide these yourself (Debian names): ${DEBIAN_PACKAGES[*]}"
    return
  fi
  local missing root=()
  mapfile -t missing < <(missing_debian_packages)
  ((${#missing[@]} == 0)) && return
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "not root and no sudo; run as root: apt-get install ${missing[*]}"
    root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -q
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q \
    --no-install-recommends "${missing[@]}"
}

# First interpreter that is new enough and can make a virtual environment with pip.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

install_python_packages() {
  local stamp
  stamp=".venv/kvant-setup-$(cat requirements.txt requirements-dev.txt | sha256sum | cut -c1-16)"
  [[ -e "$stamp" && -x .venv/bin/python ]] && return
  if [[ ! -x .venv/bin/python ]]; then
    local python
    python=$(find_python) || fail "no python3 of version 3.11 or later with the venv module; install python3-venv"
    say "creating .venv with $("$python" -V)"
    "$python" -m venv .venv
  fi
  say "installing Python packages into .venv"
  .venv/bin/python -m pip install --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
  rm -f .venv/kvant-setup-*
  touch "$stamp"
}

install_debian_packages
install_python_packages
say "ready"
