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
  "paths:     cargo run --quiet --locked -p capos -- path-test"
  "gdb:       cargo run --quiet --locked -p capos -- gdb-test"
  "terminal:  cargo run --quiet --locked -p capos -- terminal-test"
  "iso:       cargo run --quiet --locked -p capos -- iso-test"
  "golden:    cargo run --release --quiet --locked -p sim -- golden --check"
  "sim-fuzz:  cargo run --release --quiet --locked -p sim -- fuzz --seeds $seeds"
  "asan:      tools/asan.sh"
  "docs:      tools/doc.sh"
)

# Groups that boot one machine after the other, or wait for one: adjacent groups of the list that are among these run in parallel.
light=" terminal iso "
is_light() { [[ $light == *" $1 "* ]]; }

logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs" || exit 2
export CARGO_TERM_COLOR=never
# A fresh clone is built once: data that would make a second build faster would only fill the disk.
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
# The lines that say which tests failed, for the end, where they are read first and never cut off.
failures=()

# execute NAME: runs the group, and leaves its status and its milliseconds beside its log.
execute() {
  local name=$1 command start status=0
  if ! command=$(command_of "$name"); then return; fi
  read -ra words <<<"$command"
  rm -f "$logs/$name.status"
  start=${EPOCHREALTIME/./}
  "${words[@]}" >"$logs/$name.log" 2>&1 </dev/null || status=$?
  echo "$status $(((${EPOCHREALTIME/./} - start) / 1000))" >"$logs/$name.status"
}

# report NAME: says how the group went, after its name, and counts it.
report() {
  local name=$1 log=$logs/$1.log status ms good bad
  if ! command_of "$name" >/dev/null; then
    printf 'no such group; there are: %s\n' "$(all_names | tr '\n' ' ')"
    failed=$((failed + 1))
    return
  fi
  read -r status ms < <(cat "$logs/$name.status" || echo "1 0")
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

  local verdict=ok
  [ "$bad" -eq 0 ] || verdict=FAILED
  printf '%-6s %5d passed %3d failed %6d.%d s\n' "$verdict" "$good" "$bad" $((ms / 1000)) $((ms % 1000 / 100))
  if [ "$bad" -ne 0 ]; then
    local lines
    mapfile -t lines < <(grep -aE '^(test .* FAILED$|FAILED )' "$log" | cut -c 1-400)
    [ ${#lines[@]} -gt 0 ] || lines=("FAILED, see $log")
    failures+=("${lines[@]/#/$name: }")
    tail -n 40 "$log" | sed 's/^/    | /'
    printf '    the whole log: %s; again: make test GROUPS=%s\n' "$log" "$name"
  fi
}

if [ $# -eq 0 ]; then
  mapfile -t names < <(all_names)
  set -- "${names[@]}"
fi
while [ $# -gt 0 ]; do
  batch=("$1")
  shift
  while [ $# -gt 0 ] && is_light "${batch[0]}" && is_light "$1"; do
    batch+=("$1")
    shift
  done
  if [ ${#batch[@]} -eq 1 ]; then
    printf '%-10s ' "${batch[0]}"
    execute "${batch[0]}"
    report "${batch[0]}"
  else
    # Background jobs do not get Ctrl-C, so the process that gets it stops all of them.
    trap 'trap - TERM; kill 0' INT TERM
    for name in "${batch[@]}"; do execute "$name" & done
    wait
    trap - INT TERM
    for name in "${batch[@]}"; do
      printf '%-10s ' "$name"
      report "$name"
    done
  fi
done

[ ${#failures[@]} -eq 0 ] || printf '%s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
