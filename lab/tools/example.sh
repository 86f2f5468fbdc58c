#!/bin/sh
# The examples as their readers run them: a wheel of this repository in a fresh virtual environment, with nothing else
# of it on the path. Usage: lab/tools/example.sh PYTHON (one that has pip and the build tools).
set -eu
python=$1
# Outside of the repository, whose settings of pytest would be found otherwise.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/wheel"
# The build leaves nothing in the working tree; no network is needed for it.
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir "$place/wheel" \
    packages/dcpstream packages/dcpstream-node
"$python" -m venv "$place/venv"
if ! "$place/venv/bin/python" -m pip --disable-pip-version-check install --quiet \
    --find-links "$place/wheel" -r examples/sdk-tests/requirements.txt; then
    echo 'examples skipped: their packages could not be installed (is there a network?)'
    [ "${STRICT:-}" = "" ] || exit 1
    exit 0
fi
cp -r examples "$place/copy"
venv=$place/venv
unset PYTHONPATH
export PYTHONSAFEPATH=1
(cd "$place/copy/five-lines" && "$venv/bin/python" -m pytest -q)
(cd "$place/copy/sdk-tests" && "$venv/bin/python" -m pytest -q --durations=3)
(cd "$place/copy/sdk-tests" && "$venv/bin/python" -m pytest -q -n 2)
(cd "$place" && "$venv/bin/python" -W error - <<'PY'
import time

began = time.perf_counter()
from dcpstream_node import Node

with Node(("shop",), vbuckets=64):
    took, cpu = time.perf_counter() - began, time.process_time()
    print(f"a node is ready {took:.2f} s after the first import ({cpu:.2f} s of CPU with the interpreter itself)")
PY
)
echo 'examples: ok'
