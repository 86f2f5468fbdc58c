"""Defaults and choices that the help of `node` shows, so that the help does not load the node.

The owners are the modules of the node; a test compares.
"""

from __future__ import annotations

FLUSH_INTERVAL_S = 0.05
RELEASES = ("7.2", "7.6", "8.0", "8.5")
RELEASE = "8.0"
SERVER_BUGS = (
    "MB-23898-keys-only",
    "MB-73354",
    "oso-first-marker",
    "close-queued-stream",
    "MB-65581",
    "MB-66612",
    "MB-62984",
    "MB-67551",
    "empty-compressed-value",
)
PLAIN_POLICIES = ("always", "tls")
CLIENT_AUTH = ("none", "optional", "mandatory")
USER_FROM = ("subject.cn", "san.dns", "san.email", "san.uri")
PASSWORD_ITERATIONS = 4096
PASSWORD_ITERATIONS_MAX = 1_000_000
