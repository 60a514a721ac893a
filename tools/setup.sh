#!/usr/bin/env bash
# Installs what is missing, step by step: `tools/setup.sh rust python valgrind`. A step that finds everything
# in place does nothing and says nothing; one that cannot install says what to install by hand, and fails.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }
say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 1
}

# install PACKAGE WHY: by apt-get where we may.
install_package() {
  local package=$1 why=$2
  if ! has apt-get; then
    fail "$package is missing ($why) and there is no apt-get here; install it with your system's package manager"
  elif [ "$(id -u)" -ne 0 ]; then
    fail "$package is missing ($why); install it with: sudo apt-get install $package"
  fi
  say "installing $package ($why)"
  local log
  log=$(mktemp)
  # The lists of a fresh machine are empty or old: fetch them only when the first try fails.
  if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >"$log" 2>&1 &&
    ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    fail "apt-get could not install $package ($why); see the lines above"
  fi
  rm -f "$log"
}

# component NAME COMMAND...: a part of the Rust toolchain.
component() {
  local name=$1
  shift
  if "$@" >/dev/null 2>&1; then return; fi
  has rustup || fail "$name is missing; install it with your Rust toolchain"
  say "installing $name"
  rustup component add "$name" >&2 || fail "rustup could not add $name to the toolchain"
}

step_rust() {
  has cargo || fail "cargo is missing; install Rust (https://rustup.rs)"
  has cc || install_package gcc "the linker that rustc calls"
  component rustfmt cargo fmt --version
  component clippy cargo clippy --version
}

# The trace tests load what we export with Perfetto's own classes, in a virtual environment.
step_python() {
  has python3 || install_package python3 "the trace tests read our exports with a parser that is not ours"
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    install_package python3-venv "the trace tests keep their parser in a virtual environment"
}

step_valgrind() {
  has valgrind || install_package valgrind "make bench-sched counts instructions with it"
}

step_fuzz() {
  has rustup || fail "cargo-fuzz needs a nightly toolchain, and rustup is missing; install it (https://rustup.rs)"
  if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    say "installing the nightly toolchain"
    rustup toolchain install nightly --profile minimal >&2 || fail "rustup could not install nightly"
  fi
  if ! cargo fuzz --version >/dev/null 2>&1; then
    say "installing cargo-fuzz"
    cargo install --quiet --locked cargo-fuzz >&2 || fail "cargo could not install cargo-fuzz"
  fi
  has c++ || install_package g++ "the fuzzer's own runtime is C++"
}

[ $# -gt 0 ] || fail "name the steps: rust, python, valgrind, fuzz"
for step in "$@"; do
  case $step in
    rust | python | valgrind | fuzz) "step_$step" ;;
    *) fail "no step '$step'; there are rust, python, valgrind and fuzz" ;;
  esac
done
