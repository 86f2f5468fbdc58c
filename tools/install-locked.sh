#!/bin/sh
# Install a lock file into a virtual environment, exactly and with its hashes, and say how far it is.
#   tools/install-locked.sh PYTHON LOCKFILE
# Without dependencies, as the lock is complete; without build isolation, as the build tools are locked too.
set -u
python=$1 lock=$2
total=$(grep -c '^[A-Za-z0-9].*==' "$lock")
log=$(mktemp "${TMPDIR:-/tmp}/dcpstream-install.XXXXXX")
if [ -t 1 ]; then cr='\r' end='\033[K' ; else cr='' end='\n'; fi

show_progress() {
    awk -v total="$total" -v cr="$cr" -v end="$end" -v terminal="$([ -t 1 ] && echo 1)" '
        /^Collecting /             { collected++ }
        /^Requirement already /    { collected++; next }
        /^Collecting / && terminal { printf cr "   %d of %d: %s" end, collected, total, $2; fflush() }
        /^Building wheels/         { printf cr "   building what comes as source" end; fflush() }
        /^Installing collected/    { printf cr "   unpacking" end; fflush() }
        END                        { if (terminal) printf cr end }'
}

# A pipe would hide the exit status of pip, so it travels by file.
{
    "$python" -m pip --disable-pip-version-check --no-input install \
        --require-hashes --no-deps --no-build-isolation -r "$lock" 2>&1
    echo $? > "$log.status"
} | tee "$log" | show_progress
status=$(cat "$log.status")
if [ "$status" -ne 0 ]; then
    tail -n 30 "$log"
    echo "installing $lock failed; the whole output is in $log. Without a network? pip says so above." >&2
else
    rm -f "$log"
fi
rm -f "$log.status"
exit "$status"
