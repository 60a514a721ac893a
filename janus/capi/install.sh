#!/usr/bin/env bash
# Builds libjanus and installs it: `install.sh PREFIX [DESTDIR]`, called by `make install`. Writes PREFIX/lib/libjanus.a,
# libjanus.so.0 and its link libjanus.so, lib/pkgconfig/janus.pc and the headers in include/, all below DESTDIR if given.
set -euo pipefail

prefix=${1:-/usr/local}
destdir=${2:-}
case $prefix in
  /*) ;;
  *)
    echo "install.sh: PREFIX must be an absolute path, not '$prefix': janus.pc names it" >&2
    exit 2
    ;;
esac

cd "$(dirname "$0")/../.."
cargo build --quiet --release --locked -p janus-capi
built=${CARGO_TARGET_DIR:-target}/release
version=$(cargo pkgid --quiet --locked -p janus-capi)
version=${version##*[@#]}

to=$destdir$prefix
install -d "$to/lib/pkgconfig" "$to/include"
install -m 644 "$built/libjanus_c.a" "$to/lib/libjanus.a"
install -m 755 "$built/libjanus_c.so" "$to/lib/libjanus.so.0"
ln -sf libjanus.so.0 "$to/lib/libjanus.so"
install -m 644 janus/capi/include/janus.h janus/capi/include/janus_compiler.h janus/capi/include/janus_task.h "$to/include"
# No path may be taken for a pattern: awk gets both as plain strings.
awk -v prefix="$prefix" -v version="$version" '
  /^#/ { next }
  $0 == "prefix=@PREFIX@" { print "prefix=" prefix; next }
  $0 == "Version: @VERSION@" { print "Version: " version; next }
  { print }' janus/capi/janus.pc.in >"$to/lib/pkgconfig/janus.pc"
chmod 644 "$to/lib/pkgconfig/janus.pc"
echo "installed libjanus $version in $to"
if [ -n "$destdir" ]; then
  echo "it is staged: programs find it when it is in $prefix"
  exit
fi
# Where the loader and pkg-config do not look by themselves, the command says where to.
case $prefix in
  /usr | /usr/local)
    echo "to compile: cc program.c \$(pkg-config --cflags --libs janus)"
    echo "if the loader does not find it yet: ldconfig"
    ;;
  *)
    place=$(printf '%q' "$prefix")
    echo "to compile: cc program.c \$(PKG_CONFIG_PATH=$place/lib/pkgconfig pkg-config --cflags --libs janus) -Wl,-rpath,$place/lib"
    ;;
esac
