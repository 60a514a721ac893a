#!/usr/bin/env bash
# The API pages, under target/doc. The guest's crates by themselves: beside the others they would be given the standard library by features
# that those ask for; and of programs the library alone, because a program and a library of the workspace have the same name.
set -euo pipefail
export RUSTDOCFLAGS=-Dwarnings
cargo doc --workspace --exclude kernel --exclude programs --exclude rt --no-deps --locked
cargo doc -p kernel --no-deps --locked
cargo doc -p programs -p rt --lib --no-deps --locked
