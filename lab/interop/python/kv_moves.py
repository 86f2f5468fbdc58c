"""The official Python SDK while the nodes of its cluster come, are killed and are replaced."""

from __future__ import annotations

import argparse

from common import Part, begin, connect
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    DocumentNotFoundException,
    DurabilityImpossibleException,
    DurabilitySyncWriteAmbiguousException,
    DurabilitySyncWriteInProgressException,
    RequestCanceledException,
    TemporaryFailException,
    TimeoutException,
    UnAmbiguousTimeoutException,
)
from couchbase.options import UpsertOptions
from moving import Load

RETRIED = (
    AmbiguousTimeoutException,
    DurabilitySyncWriteAmbiguousException,
    DurabilitySyncWriteInProgressException,
    RequestCanceledException,
    TemporaryFailException,
    TimeoutException,
    UnAmbiguousTimeoutException,
)
"""Errors that the SDK hands to the application: the write has not succeeded, or nobody knows. It repeats NOT_MY_VBUCKET
itself."""


def parts(options: argparse.Namespace) -> list[Part]:
    """Writes through a rebalance, a failover, and a rebalance."""
    collection = connect(options).bucket(options.bucket).scope("shop").collection("orders")
    durable = UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY))

    def put(key: str, number: int, is_durable: bool) -> None:
        collection.upsert(key, {"number": number}, durable if is_durable else UpsertOptions())

    def get(key: str) -> int | None:
        try:
            found: int = collection.get(key).content_as[dict]["number"]
        except DocumentNotFoundException:
            return None
        return found

    return Load(put, get, RETRIED, DurabilityImpossibleException).parts()


if __name__ == "__main__":
    begin(parts)
