"""The options of the writer."""

from __future__ import annotations

import pytest

from dcpstream.client.kv.writes import Durability, WriteOp
from dcpstream.errors import ConfigError
from dcpstream_spark.sink.write_options import CONNECTION_OPTIONS, WRITE_OPTIONS, WriteOptions
from tests.kit.cases import each_case

NEEDED = {"connectionString": "couchbase://localhost", "username": "u", "password": "p", "bucket": "b"}


def test_defaults() -> None:
    options = WriteOptions.parse({**NEEDED, "checkpointLocation": "/tmp/c"})
    assert options.operation is WriteOp.UPSERT
    assert (options.key_column, options.value_column, options.on_reject) == ("key", None, "fail")
    assert options.durability is Durability.NONE
    assert options.flags is None
    assert options.connection.bucket == "b"


def test_names_in_any_case() -> None:
    given = {"OPERATION": "Replace", "durability": "MAJORITYANDPERSISTTOACTIVE", "flags": "7", "COLLECTION": "s.c"}
    options = WriteOptions.parse({**{name.lower(): text for name, text in NEEDED.items()}, **given})
    assert options.operation is WriteOp.REPLACE
    assert options.durability is Durability.MAJORITY_AND_PERSIST_TO_ACTIVE
    assert (options.scope, options.collection, options.flags) == ("s", "c", 7)


def test_a_collection_in_a_scope() -> None:
    options = WriteOptions.parse({**NEEDED, "scope": "s", "collection": "c"})
    assert (options.scope, options.collection) == ("s", "c")
    assert WriteOptions.parse({**NEEDED, "collection": "c"}).scope == "_default"


@each_case(
    ("given", "option", "message"),
    [
        ({"operation": "merge"}, "operation", "upsert, insert, replace, delete"),
        ({"onReject": "path"}, "rejectsPath", "needs the directory"),
        ({"rejectsPath": "/tmp/x"}, "rejectsPath", "onReject=path"),
        ({"operation": "insert", "casColumn": "cas"}, "casColumn", "no CAS"),
        ({"expiry": "2592001"}, "expiry", "30 days"),
        ({"expiry": "5", "expiryColumn": "e"}, "expiryColumn", "both given"),
        ({"flags": "5", "flagsColumn": "f"}, "flagsColumn", "both given"),
        ({"flags": "-1"}, "flags", "whole number"),
        ({"durabilityTimeout": "3"}, "durabilityTimeout", "without durability"),
        ({"durability": "majority", "durabilityTimeout": "66"}, "durabilityTimeout", "65"),
        ({"collection": "a.b.c"}, "collection", "scope.collection"),
        ({"collection": "a.b", "scope": "c"}, "collection", "'c'"),
        ({"startingOffsets": "latest"}, "startingOffsets", "for reading"),
        ({"keyColum": "k"}, "keyColum", "Did you mean keyColumn"),
        ({"password2": "hidden"}, "password2", "no option password2"),
    ],
)
def test_what_is_refused(given: dict[str, str], option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        WriteOptions.parse({**NEEDED, **given})
    assert raised.value.option == option
    assert "hidden" not in str(raised.value)


def test_a_missing_option_of_the_connection_is_named() -> None:
    with pytest.raises(ConfigError, match="bucket"):
        WriteOptions.parse({name: text for name, text in NEEDED.items() if name != "bucket"})


def test_names_are_unique() -> None:
    names = [option.name.lower() for option in WRITE_OPTIONS] + [name.lower() for name in CONNECTION_OPTIONS]
    assert len(set(names)) == len(names)
