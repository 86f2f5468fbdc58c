#!/bin/sh
# Exit 0 if Spark will find a Java runtime by itself: JAVA_HOME, or a java on PATH that is new enough.
# Exit 1 if there is none, and one can be installed. Exit 2 if JAVA_HOME, which Spark takes before any other, names an
# older one; the message shows its version.
set -u
oldest=17

# The major version: 8 for "1.8.0_412"; empty if the program shows none.
version_of() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then
    version=$(version_of "$JAVA_HOME/bin/java")
    [ -z "$version" ] || [ "$version" -ge "$oldest" ] && exit 0
    echo "JAVA_HOME=$JAVA_HOME is Java $version, and Spark needs Java $oldest or newer." >&2
    echo "Set JAVA_HOME to a newer one, or unset it: then one is installed for this project if there is none." >&2
    exit 2
fi
java=$(command -v java) || exit 1
version=$(version_of "$java")
[ -n "$version" ] && [ "$version" -ge "$oldest" ]
