#!/usr/bin/env bash
# The inner loop: `make check`. What most changes break is found here, in the order in which it is found fastest; the first failure ends it.
# Everything else is in `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Crates whose tests take seconds: what decides, what is agreed, and what needs no machine.
fast=(-p sched -p kcore -p abi -p image -p schema -p rt -p edit -p tidy)
began=$SECONDS

run() {
  local from=$SECONDS
  printf '%-44s ' "$1"
  shift
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1 </dev/null; then
    echo FAILED
    tail -n 60 "$log"
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
  printf 'ok %4d s\n' $((SECONDS - from))
}

run 'format' cargo fmt --all --check
run 'tidy: docs and files' cargo run --quiet --locked -p tidy
run 'clippy: core, runtime of programs, tools' cargo clippy "${fast[@]}" -p sim -p capos --all-targets --locked -- -D warnings
run 'tests of the host' cargo test --quiet "${fast[@]}" --locked
run 'tests of the simulator and of capos' cargo test --quiet -p sim -p capos --lib --locked
run 'clippy: kernel and programs' cargo run --quiet --locked -p capos -- lint
run 'smoke on two CPUs' cargo run --quiet --locked -p capos -- proof smoke --cpus 2
echo "check: ok, $((SECONDS - began)) s; make test runs everything"
