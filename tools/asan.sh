#!/usr/bin/env bash
# Runs suites of the runtime under AddressSanitizer: `tools/asan.sh [SUITE...]`. Needs the nightly toolchain.
# Fails when a test fails or AddressSanitizer reports anything. `tools/asan.sh --prove` plants a use-after-free in a task and
# fails unless it is found.
#
# Left out, and why:
# - overflow, overflow_runtime, storms: they overflow stacks on purpose. The sanitizer's own handler takes the fault for a bug
#   of the program (it must have SIGSEGV to itself), its frames are many times larger than a lean stack, and a task that is
#   abandoned leaves the poison of its frames behind on a stack that is used again.
# - warm_spawn: it has an allocator of its own.
# - single tests: memory that comes back (freed memory is kept in quarantine), 256 workers and a million tasks (time).
# Fibers need no annotation: with use-after-return detection off there is no fake stack to switch. Their stacks are four times
# as large as else (`ROOM` in janus/src/stack.rs): the sanitizer's allocator alone takes 3 KB of one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(runtimes observe workers watchdog)

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/asan
export RUSTFLAGS="-Zsanitizer=address"
export ASAN_OPTIONS="detect_stack_use_after_return=0:detect_leaks=0:abort_on_error=0:allow_user_segv_handler=1"
# The sanitizer comes with nightly only. A machine without it runs every other group.
if ! host=$(rustc +nightly -vV 2>/dev/null | sed -n 's/^host: //p') || [ -z "$host" ]; then
  echo "asan: SKIPPED: no nightly toolchain here; rustup toolchain install nightly brings one"
  exit 0
fi
logs=$CARGO_TARGET_DIR/logs
mkdir -p "$logs" || exit 2

# run NAME ARGUMENTS...: one test program, its output in a log; 0 when it passed and the sanitizer said nothing.
run() {
  local log=$logs/$1.log status=0
  cargo +nightly test --quiet --locked --target "$host" -p janus --test "$1" -- \
    --skip made_and_dropped --skip on_256 "${@:2}" >"$log" 2>&1 || status=$?
  if grep -q 'AddressSanitizer' "$log"; then status=97; fi
  return "$status"
}

# show NAME: the end of its log, for a reader who has nothing else.
show() {
  tail -n 15 "$logs/$1.log" | sed 's/^/    | /'
}

if [ "${suites[0]}" = --prove ]; then
  if run asan_proof --ignored; then
    echo "asan: FAILED: a planted use-after-free was not found; see $logs/asan_proof.log"
    exit 1
  fi
  if grep -q 'heap-use-after-free' "$logs/asan_proof.log"; then
    echo "asan: the planted use-after-free is found"
    exit 0
  fi
  echo "asan: FAILED: the proof did not run; see $logs/asan_proof.log, which ends:"
  show asan_proof
  exit 1
fi

failed=0
for suite in "${suites[@]}"; do
  if run "$suite"; then
    echo "asan $suite: ok"
  else
    echo "asan $suite: FAILED; see $logs/$suite.log, which ends:"
    show "$suite"
    failed=1
  fi
done
exit "$failed"
