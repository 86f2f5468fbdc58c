"""Shared by the programs with the Python SDK: the command line, the login, and running and reporting parts."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

KV_TIMEOUT = timedelta(seconds=10)
SHORT = timedelta(milliseconds=800)
"""Time limit of calls that the SDK repeats until the limit."""

Part = tuple[str, Callable[[], None]]


def settings() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("connect", None),
        ("user", "Administrator"),
        ("password", "password"),
        ("ca", ""),
        ("bucket", "default"),
        ("kept", "no"),
    ):
        parser.add_argument(f"-{name}", default=default, required=default is None)
    parser.add_argument("-plain", action="store_true", help="log in by PLAIN instead of SCRAM-SHA512")
    return parser.parse_args()


def connect(options: argparse.Namespace, *, password: str | None = None, user: str | None = None) -> Cluster:
    """A connected cluster."""
    make = PasswordAuthenticator.ldap_compatible if options.plain else PasswordAuthenticator
    trust = {"trust_store_path": options.ca} if options.ca else {}
    timeouts = ClusterTimeoutOptions(
        connect_timeout=timedelta(seconds=20), bootstrap_timeout=timedelta(seconds=20), kv_timeout=KV_TIMEOUT
    )
    login = make(user or options.user, password or options.password)
    return Cluster.connect(options.connect, ClusterOptions(login, timeout_options=timeouts, **trust))


def refused(
    kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[..., Any], *arguments: Any
) -> None:
    """Expect an error."""
    try:
        got = call(*arguments)
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"expected {kind}, got {type(error).__name__}: {str(error)[:300]}") from error
    raise AssertionError(f"expected {kind}, got {got!r}")


def order(action: str) -> None:
    """Request an action on the node, and wait until it is done."""
    print(f"DO {action}", flush=True)
    assert input() == "DONE"


def run(parts: list[Part]) -> int:
    """Run all parts, also after a failure, and print the results; returns the exit code."""
    failed = 0
    for name, attempt in parts:
        try:
            attempt()
        except Exception as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[1:2] or traceback.extract_tb(error.__traceback__)
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            print(f"FAIL {name}: line {where[0].lineno}: {text}", flush=True)
        else:
            print(f"ok {name}", flush=True)
    print(f"FAIL {failed} of {len(parts)} parts" if failed else f"OK {len(parts)} parts", flush=True)
    return 1 if failed else 0


def begin(make: Callable[[argparse.Namespace], list[Part]]) -> None:
    """The main function of a program."""
    try:
        parts = make(settings())
    except Exception as error:
        print(f"FAIL to begin: {type(error).__name__}: {' '.join(str(error).split())[:500]}", flush=True)
        sys.exit(1)
    sys.exit(run(parts))
