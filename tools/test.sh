#!/usr/bin/env bash
# Runs the test groups: `tools/test.sh [GROUP...]`, all of them by default, every one even after a failure.
# The log of each is kept under target/test-logs/. Ends with the plain line `N passed, M failed`.
#
# To add a group, add one line to the list below: its name, a colon and its command (plain words, no quoting).
# A group that prints libtest's "test result:" lines counts as many tests as they say; one whose last line is
# "N passed, M failed" as many as that says; any other counts as one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

seeds=${SEEDS:-200}
groups=(
  "fmt:       cargo fmt --all --check -- --color=never"
  "clippy:    cargo clippy --all-targets --locked -- -D warnings"
  "lint:      cargo run --quiet --locked -p capos -- lint"
  "tidy:      cargo run --quiet --locked -p tidy"
  "tests:     cargo test --workspace --exclude models --exclude kernel --exclude programs --locked --no-fail-fast"
  "models:    cargo test --release -p models --locked --no-fail-fast"
  "no-std:    tools/no-std/check.sh"
  "kernel:    cargo run --quiet --locked -p capos -- suite"
  "terminal:  cargo run --quiet --locked -p capos -- terminal-test"
  "iso:       cargo run --quiet --locked -p capos -- iso-test"
  "linux:     cargo run --quiet --locked -p capos -- linux-test"
  "golden:    cargo run --release --quiet --locked -p sim -- golden --check"
  "sim-fuzz:  cargo run --release --quiet --locked -p sim -- fuzz --seeds $seeds"
  "asan:      tools/asan.sh"
  "docs:      tools/doc.sh"
)

logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs" || exit 2
export CARGO_TERM_COLOR=never
# A fresh clone is built once: what would make the second build faster only fills the disk.
if [ "${CI-}" = true ]; then export CARGO_INCREMENTAL=0; fi

all_names() {
  local line
  for line in "${groups[@]}"; do echo "${line%%:*}"; done
}

command_of() {
  local line
  for line in "${groups[@]}"; do
    if [ "${line%%:*}" = "$1" ]; then
      echo "${line#*:}"
      return
    fi
  done
  return 1
}

# count LOG WORD: the sum of the numbers before WORD in libtest's result lines, or the one in a last line of our own;
# nothing when there is neither.
count() {
  awk -v word="$2" '
    /^test result:/ { seen = 1; for (i = 2; i <= NF; i++) if ($i == word ";") sum += $(i - 1) }
    END {
      if (!seen && /^[0-9]+ passed, [0-9]+ failed$/) { seen = 1; sum = word == "passed" ? $1 : $3 }
      if (seen) print sum + 0
    }' "$1"
}

passed=0
failed=0

run_group() {
  local name=$1 command log=$logs/$1.log start status=0 good bad
  if ! command=$(command_of "$name"); then
    printf '%-10s no such group; there are: %s\n' "$name" "$(all_names | tr '\n' ' ')"
    failed=$((failed + 1))
    return
  fi
  read -ra words <<<"$command"
  printf '%-10s ' "$name"
  start=${EPOCHREALTIME/./}
  "${words[@]}" >"$log" 2>&1 </dev/null || status=$?

  good=$(count "$log" passed)
  bad=$(count "$log" failed)
  if [ -z "$good" ]; then
    # No libtest here (or it did not compile): the group is one test.
    good=$((status == 0 ? 1 : 0))
    bad=$((1 - good))
  elif [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$good" -eq 0 ]; }; then
    # A crash that libtest could not count, or a group that ran no test at all.
    bad=1
  fi
  passed=$((passed + good))
  failed=$((failed + bad))

  local ms=$(((${EPOCHREALTIME/./} - start) / 1000))
  local verdict=ok
  [ "$bad" -eq 0 ] || verdict=FAILED
  printf '%-6s %5d passed %3d failed %6d.%d s\n' "$verdict" "$good" "$bad" $((ms / 1000)) $((ms % 1000 / 100))
  if [ "$bad" -ne 0 ]; then
    grep -E '^test .* FAILED$' "$log" | sed 's/^/    | /'
    tail -n 40 "$log" | sed 's/^/    | /'
    printf '    the whole log: %s; again: make test GROUPS=%s\n' "$log" "$name"
  fi
}

if [ $# -eq 0 ]; then
  mapfile -t names < <(all_names)
  set -- "${names[@]}"
fi
for name in "$@"; do run_group "$name"; done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
