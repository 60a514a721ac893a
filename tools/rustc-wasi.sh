#!/usr/bin/env bash
# rustc for WASI, with the arguments that it is given: the toolchain's own where it has that target, or else Debian's, which
# `tools/setup.sh wasm` unpacks into target/rust-wasi.
set -euo pipefail
unpacked=$(cd "$(dirname "$0")/.." && pwd)/target/rust-wasi/usr
libraries=$(printf '%s:' "$unpacked"/lib/*-linux-gnu)
debian=(env LD_LIBRARY_PATH="${libraries%:}" "$unpacked/bin/rustc" -C linker=wasm-ld)

# has TARGET COMMAND...: does this compiler have the target's library?
has() {
  local target=$1 library
  shift
  library=$("$@" --print target-libdir --target "$target" 2>/dev/null) && compgen -G "$library/libstd-*.rlib" >/dev/null
}

# The target's name today, and before Rust 1.78.
for target in wasm32-wasip1 wasm32-wasi; do
  if has "$target" rustc; then exec rustc --target "$target" "$@"; fi
  if has "$target" "${debian[@]}"; then exec "${debian[@]}" --target "$target" "$@"; fi
done
echo "rustc-wasi: no Rust compiler for WASI; tools/setup.sh wasm fetches one" >&2
exit 1
