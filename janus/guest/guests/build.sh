#!/usr/bin/env bash
# Builds the guests that are written in C: `build.sh FOLDER [NAME...]`. They need Debian's clang, lld, wasi-libc and
# libclang-rt-*-dev-wasm32 (`tools/setup.sh wasm` installs them).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?the folder for the modules}
shift
[ $# -gt 0 ] || set -- wc primes sort greet
mkdir -p "$to"
for name in "$@"; do
  clang --target=wasm32-wasi --sysroot=/usr -O2 -Wall -Wextra -Werror -I"$here" -o "$to/$name.wasm" "$here/$name.c"
done
