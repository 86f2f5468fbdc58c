#!/bin/sh
# The core's tests on every interpreter found other than the one of .venv, and once more without the extras.
#   lab/tools/test-matrix.sh [STRICT]
set -u
cd "$(dirname "$0")/../.."
main=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
core='not slow and not spark and not interop'
jobs="-n ${JOBS:-4} --dist loadgroup"
# Without what needs pyspark, deltalake or psutil, which the environments of other interpreters do not have. Folders are
# named, because pytest does not ignore one of its `testpaths`.
tables='packages/dcpstream/tests packages/dcpstream-node/tests tests --ignore=tests/simulation/test_tables_model.py'
# What needs any other extra.
core_tests=packages/dcpstream/tests
extras="--ignore=$core_tests/unit/arrow --ignore=$core_tests/property/test_columnar.py
    --ignore=$core_tests/unit/runtime/test_kernel.py --ignore=$core_tests/unit/runtime/test_slabs.py
    --ignore=packages/dcpstream-node/tests/behaviour/test_status_page_in_browser.py
    --ignore=tests/simulation/test_rollback_cost.py --ignore=tests/behaviour/test_demo.py"
sources="$PWD/packages/dcpstream/src:$PWD/packages/dcpstream-node/src:$PWD/packages/dcpstream-spark/src"
failed='' ran="$main (by make test)"

# A working interpreter of that version: on PATH, or among pyenv's (whose shims fail for versions not switched on).
interpreter() {
    for path in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        "$path" -c "import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null \
            && { echo "$path"; return 0; }
    done
    return 1
}

say() { printf '\033[1m== %s\033[0m\n' "$1"; }

say "core on Python $main without the extras"
# shellcheck disable=SC2086
.venv/bin/python -m pytest -q -p tests.fixtures.without_extras -m "$core" $jobs $tables $extras \
    || failed="$failed without-extras"

for version in 3.11 3.12 3.13 3.14; do
    [ "$version" = "$main" ] && continue
    python=$(interpreter "$version") || continue
    venv=.venv-$version
    say "core on Python $version"
    if [ ! -e "$venv/.installed" ] || [ requirements/matrix.lock -nt "$venv/.installed" ]; then
        "$python" -m venv --clear "$venv" \
            && sh lab/tools/install-locked.sh "$venv/bin/python" requirements/matrix.lock \
            && touch "$venv/.installed" || { failed="$failed $version"; continue; }
    fi
    # shellcheck disable=SC2086
    PYTHONPATH="$sources" "$venv/bin/python" -m pytest -q -p no:cacheprovider -m "$core" ${1:+--strict-skips} \
        $jobs $tables || failed="$failed $version"
    ran="$ran, $version"
done
echo "interpreters: $ran"
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
