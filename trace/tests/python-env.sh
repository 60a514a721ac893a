#!/bin/sh
# Makes the Python environment that the viewer test needs, and prints the path of its interpreter.
# A venv under target/, because a system-wide pip install is not ours to make. Run twice, it does
# nothing the second time. CAPOS_PYTHON_ENV moves it.
set -eu

workspace=$(cd "$(dirname "$0")/../.." && pwd)
env_dir=${CAPOS_PYTHON_ENV:-$workspace/target/python}
python=$env_dir/bin/python
packages='perfetto==0.59.1 protobuf==7.36.2'
needs='import perfetto.protos.perfetto.trace.perfetto_trace_pb2'

fail() {
    echo "python-env: $1" >&2
    exit 1
}

ready() {
    [ -x "$python" ] && "$python" -c "$needs" >/dev/null 2>&1
}

mkdir -p "$env_dir" || fail "cannot make $env_dir; set CAPOS_PYTHON_ENV to a folder that you may write"
# Tests run side by side: the second waits for the first instead of breaking its venv.
exec 9>"$env_dir/.lock"
if command -v flock >/dev/null; then
    flock 9
fi
if ! ready; then
    command -v python3 >/dev/null || fail "python3 is missing; try: apt-get install python3 python3-venv"
    python3 -m venv "$env_dir" >&2 ||
        fail "python3 -m venv failed in $env_dir; try: apt-get install python3-venv"
    # shellcheck disable=SC2086 # the list is meant to be split
    "$python" -m pip install --quiet --disable-pip-version-check $packages >&2 ||
        fail "pip could not install $packages; the package index must be reachable once"
    ready || fail "$packages are installed in $env_dir but do not load; remove the folder and try again"
fi
echo "$python"
