#!/bin/sh
# The judges of the tests that are no Python packages: tshark, an independent decoder of the protocol.
# Installed where that is possible (root and apt-get); where it is not, its tests are skipped and say so.
if command -v tshark >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    printf '\033[1m== tshark, an independent decoder\033[0m\n'
    export DEBIAN_FRONTEND=noninteractive
    if { apt-get update -qq && apt-get install -y -qq --no-install-recommends tshark; } >/dev/null 2>&1; then
        exit 0
    fi
fi
echo 'tshark is not there and could not be installed: its tests will be skipped'
