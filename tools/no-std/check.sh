#!/usr/bin/env bash
# Proves that the crates which the kernel links need no standard library, with only the host's toolchain:
# 1. proof.rs, which brings its own panic handler, compiles against them (std would bring a second one);
# 2. with std planted in it, it does not;
# 3. what they leave for the linker to find is what the compiler itself may call, and nothing of libc.
set -euo pipefail
cd "$(dirname "$0")/../.."

crates=(sched trace abi kcore schema)
# The compiler may emit calls to these anywhere; every kernel brings its own.
allowed='^(memcpy|memmove|memset|memcmp|bcmp|strlen|rust_eh_personality|_Unwind_Resume|_GLOBAL_OFFSET_TABLE_)$'

out=${CARGO_TARGET_DIR:-target}/no-std
# A folder of its own, so that no other build's features leak in.
packages=()
externs=()
for crate in "${crates[@]}"; do
  packages+=(-p "$crate")
  externs+=(--extern "$crate=$out/release/lib$crate.rlib")
done
cargo build --quiet --locked --release --no-default-features --target-dir "$out" "${packages[@]}"

# Other arguments for the compiler come first.
compile() {
  rustc "$@" --edition 2024 --crate-name proof --crate-type staticlib -C panic=abort -C opt-level=2 \
    "${externs[@]}" -L "dependency=$out/release/deps" -o "$out/libproof.a" tools/no-std/proof.rs
}

rustfmt --edition 2024 --check tools/no-std/proof.rs

rm -f "$out/libproof.a"
if compile --cfg planted_std 2>"$out/planted.log"; then
  echo "no-std: the proof compiles with std planted in it, so it proves nothing; mend tools/no-std/proof.rs" >&2
  exit 1
elif ! grep -q 'duplicate lang item\|found duplicate' "$out/planted.log"; then
  echo "no-std: the planted variant fails for another reason than a second panic handler:" >&2
  cat "$out/planted.log" >&2
  exit 1
fi

if ! compile; then
  echo "no-std: ${crates[*]} cannot be linked without std; a dependency or a feature pulls it in" >&2
  exit 1
fi
ld -r --whole-archive "$out/libproof.a" -o "$out/proof.o"
undefined=$(readelf --symbols --wide "$out/proof.o" | awk '$7 == "UND" && NF == 8 { print $8 }' | sort -u)
if ! grep -qx memcpy <<<"$undefined"; then
  echo "no-std: not even memcpy is undefined, so the list of symbols was not read; mend tools/no-std/check.sh" >&2
  exit 1
fi
missing=$(awk -v allowed="$allowed" '$0 !~ allowed' <<<"$undefined")
if [ -n "$missing" ]; then
  printf 'no-std: %s need from outside what a kernel does not have:\n%s\n' "${crates[*]}" "$missing" >&2
  exit 1
fi
echo "no-std: ${crates[*]} link without std; std planted is refused"
