#!/usr/bin/env bash
# Runs the fuzz targets of fuzz/ for a while each: `tools/fuzz.sh SECONDS [TARGET...]`, all targets by default.
# A crash is kept under fuzz/artifacts/ and replayed with the command that is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || {
  echo "usage: tools/fuzz.sh SECONDS [TARGET...]" >&2
  exit 2
}
duration_s=$1
shift
[ -d fuzz ] || {
  echo "fuzz: there is no folder fuzz/ with targets" >&2
  exit 1
}

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${targets[@]}"; do
  [ -f "fuzz/fuzz_targets/$target.rs" ] || {
    echo "fuzz: no target $target; there are: $(cargo +nightly fuzz list | tr '\n' ' ')" >&2
    exit 2
  }
done
failed=0
for target in "${targets[@]}"; do
  echo "fuzz $target: $duration_s s"
  # Long inputs from the start: a module of a few bytes has no code.
  if ! cargo +nightly fuzz run "$target" -- -max_total_time="$duration_s" -max_len=4096 -len_control=0 -print_final_stats=1; then
    echo "fuzz $target: FAILED; replay with: cargo +nightly fuzz run $target <the file named above>"
    failed=1
  fi
done
exit "$failed"
