#!/bin/sh
# Install a lock file into a virtual environment, exactly and with its hashes, and say how far it is.
#   lab/tools/install-locked.sh PYTHON LOCKFILE
# Without dependencies, as the lock is complete; without build isolation, as the build tools are locked too. What is
# imported compiles itself then: most files of packages never are, and all of them together take 20 s.
set -u
python=$1 lock=$2
total=$(grep -c '^[A-Za-z0-9].*==' "$lock")
log=$(mktemp "${TMPDIR:-/tmp}/dcpstream-install.XXXXXX")
is_terminal=''
if [ -t 1 ]; then is_terminal=1; fi

# One line that is written over on a terminal; elsewhere only the stages.
show_progress() {
    count=0
    while read -r first second rest; do
        case "$first $second" in
            Collecting\ *)
                count=$((count + 1))
                [ -z "$is_terminal" ] || printf '\r   %d of %d: %s\033[K' "$count" "$total" "$second" ;;
            Requirement\ already) count=$((count + 1)) ;;
            Building\ wheels*) stage 'building what comes as source' ;;
            Installing\ collected*) stage 'unpacking' ;;
        esac
    done
    [ -z "$is_terminal" ] || printf '\r\033[K'
}

stage() {
    if [ -n "$is_terminal" ]; then printf '\r   %s\033[K' "$1"; else echo "   $1"; fi
}

# A pipe would hide the exit status of pip, so it travels by file.
{
    PYTHONUNBUFFERED=1 "$python" -m pip --disable-pip-version-check --no-input install \
        --require-hashes --no-deps --no-build-isolation --no-compile -r "$lock" 2>&1
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
