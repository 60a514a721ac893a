#!/usr/bin/env bash
# Builds the guests that are written in C and Rust (guests/*.c, guests/*.rs): `build.sh FOLDER [NAME...]`. They need Debian's
# clang, lld, wasi-libc and libclang-rt-*-dev-wasm32, and a rustc for WASI: `tools/setup.sh wasm` has them all.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?the folder for the modules}
shift
[ $# -gt 0 ] || set -- wc primes sort greet posix links words number collatz
mkdir -p "$to"
for name in "$@"; do
  if [ -e "$here/$name.rs" ]; then
    "$here/../../../tools/rustc-wasi.sh" --edition 2021 -C opt-level=2 -C strip=symbols -D warnings -o "$to/$name.wasm" "$here/$name.rs"
  else
    clang --target=wasm32-wasi --sysroot=/usr -O2 -Wall -Wextra -Werror -I"$here" -o "$to/$name.wasm" "$here/$name.c"
  fi
done
