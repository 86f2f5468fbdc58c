"""Queries whose password or token changes while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcpstream.runtime import SystemClock
from dcpstream_node import Node
from tests.kit.spark import kv_of
from tests.kit.tokens import issuer, token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROLES = ["data_dcp_reader[*]", "data_reader[*]", "data_writer[*]"]
LIFETIME_S = 60


@contextmanager
def running_query(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> Iterator[Callable[[], list[str]]]:
    """A query; the function returns the keys of everything that it has read until now."""
    found: list[str] = []

    def sink(frame: DataFrame, _: int) -> None:
        found.extend(row.key for row in frame.select("key").collect())

    given = {"bucket": "default", "startingOffsets": "earliest", "numPartitions": "2", **options}
    frame = spark.readStream.format("dcp").options(**given).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()

    def keys() -> list[str]:
        query.processAllAvailable()
        return sorted(found)

    try:
        yield keys
    finally:
        query.stop()


def write(node: Node, prefix: str) -> list[str]:
    keys = [f"{prefix} {number:02}" for number in range(40)]
    with kv_of(node) as kv:
        kv.set_many((key, b"1") for key in keys)
    return keys


def test_the_password_changes(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("word number 0")
    with Node(vbuckets=8, system_scope=False) as node:
        node.add_user("reader", "word number 0", ROLES)
        options = {
            "connectionString": node.connection_string,
            "username": "reader",
            "passwordFile": str(file),
        }
        with running_query(spark, options, tmp_path / "checkpoint") as keys:
            written = write(node, "0")
            assert keys() == written
            for number in (1, 2):
                word = f"word number {number}"
                # The cluster has it first, and then the file does: both orders happen.
                changes = [lambda: node.add_user("reader", word, ROLES), lambda: file.write_text(word)]  # noqa: B023
                for change in changes if number == 1 else reversed(changes):
                    change()
                node.inject("drop")
                written += write(node, str(number))
                assert keys() == written


def test_the_token_expires(spark: SparkSession, tmp_path: Path) -> None:
    file, trust = tmp_path / "token", tmp_path / "ca.pem"
    users = {"ann": {"password": None, "roles": ROLES, "domain": "external"}}
    settings = {"issuers": [issuer(expiryLeewayS=0)]}
    with Node(vbuckets=8, tls=True, users=users, jwt=settings, release="8.0", system_scope=False) as node:
        trust.write_text(node.ca_certificate)
        moved_s = 0.0

        def renew() -> None:
            file.write_text(token(SystemClock().time_ns() / 1e9 + moved_s + LIFETIME_S))

        renew()
        options = {
            "connectionString": node.tls_connection_string,
            "trustCertificate": str(trust),
            "tokenFile": str(file),
        }
        with running_query(spark, options, tmp_path / "checkpoint") as keys:
            written = write(node, "0")
            assert keys() == written
            for number in (1, 2):
                node.inject("move_clock", seconds=LIFETIME_S + 1)
                moved_s += LIFETIME_S + 1
                renew()
                written += write(node, str(number))
                assert keys() == written


def test_a_file_that_is_missing_is_reported_where_the_query_is_defined(spark: SparkSession) -> None:
    options = {
        "connectionString": "couchbase://127.0.0.1:9",
        "username": "reader",
        "passwordFile": "/no/such/file",
        "bucket": "default",
    }
    with pytest.raises(Exception, match="passwordFile: /no/such/file cannot be read: No such file"):
        spark.readStream.format("dcp").options(**options).load()
