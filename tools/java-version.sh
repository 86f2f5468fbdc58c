#!/bin/sh
# Exit 0 if Spark will find a Java runtime by itself: JAVA_HOME, or a java on PATH that is new enough.
set -u
oldest=17
[ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && exit 0
java=$(command -v java) || exit 1
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ -n "$version" ] && [ "$version" -ge "$oldest" ]
