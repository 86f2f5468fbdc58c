#!/bin/sh
# Print the path of a Python that can build the project's virtual environment, or say what is missing.
# PYTHON=/path/to/python make setup   chooses one by hand.
set -u
oldest='3, 11'

is_new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < ($oldest))" 2>/dev/null; }
can_build_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

found='' old=''
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    path=$(command -v "$name" 2>/dev/null) || continue
    if ! is_new_enough "$path"; then
        old="$old $path ($("$path" -V 2>&1))"
    elif can_build_venv "$path"; then
        echo "$path"
        exit 0
    else
        found="$found $path"
    fi
done

{
    if [ -n "$found" ]; then
        echo "Found$found, but without the modules venv and ensurepip."
        echo "On Debian and Ubuntu they come with: apt-get install python3-venv"
    elif [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON is no Python 3.11 or newer.$old"
    else
        echo "dcpstream needs Python 3.11 or newer; found:${old:- no python3 on PATH}."
        echo "Install one (apt-get install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3.12"
    fi
} >&2
exit 1
