#!/usr/bin/env bash
# Generates schema/src/messages_capnp.rs from schema/messages.capnp: `schema/generate.sh [FOLDER]`, into schema/src by default.
# Needs `capnp` (Debian: capnproto) and `capnpc-rust` (cargo install capnpc --version 0.27.0); the build needs neither.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-src}

for tool in capnp capnpc-rust; do
  if ! command -v "$tool" >/dev/null; then
    echo "generate.sh: $tool is not installed; see the first lines of schema/generate.sh" >&2
    exit 3
  fi
done
capnp compile --no-standard-import -o- capos.capnp >/dev/null
capnp compile --no-standard-import -o"$(command -v capnpc-rust):$out" messages.capnp
