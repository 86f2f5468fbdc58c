"""The fields of documents, as Spark's JSON source infers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dcpstream_node
from dcpstream.errors import ConfigError
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.inference import infer, inferred_schema
from tests.kit.cases import each_case
from tests.kit.spark import access, kv_of

pytestmark = pytest.mark.usefixtures("closes_connections")


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    """A node whose vbuckets begin empty: a sample counts changes, events of collections included."""
    with dcpstream_node.Node(vbuckets=4, system_scope=False) as node:
        yield node


@each_case(
    ("documents", "schema"),
    [
        ([b'{"b": 1, "a": "x"}'], "a:string,b:bigint"),
        ([b'{"a": 1}', b'{"a": 1.5}'], "a:double"),
        ([b'{"a": 1}', b'{"a": "1"}'], "a:string"),
        ([b'{"a": 1}', b'{"a": null}', b'{"b": null}'], "a:bigint,b:string"),
        ([b'{"a": true}', b'{"a": 1}'], "a:string"),
        ([b'{"a": 9223372036854775808}'], "a:decimal(19,0)"),
        ([b'{"a": 9223372036854775808}', b'{"a": 1}'], "a:decimal(20,0)"),
        ([b'{"a": 1' + b"0" * 38 + b"}"], "a:double"),
        ([b'{"a": [1, null, 2.5]}', b'{"a": []}'], "a:array<double>"),
        ([b'{"a": [{"x": 1}, {"y": "z"}]}'], "a:array<struct<x:bigint,y:string>>"),
        ([b'{"a": {"x": {}}}', b'{"a": {"y": [null]}}'], "a:struct<x:string,y:array<string>>"),
        ([b'{"a": {"x": 1}}', b'{"a": [1]}'], "a:string"),
        ([b"[1]", b"\xff", b"5"], ""),
        ([b"{}"], ""),
    ],
)
def test_types(documents: list[bytes], schema: str) -> None:
    found, is_any_malformed = infer(documents)
    assert found.simpleString() == f"struct<{schema}>"
    assert is_any_malformed == (b"[1]" in documents)
    assert infer(reversed(documents))[0] == found


def test_a_sample_of_a_bucket(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b'{"name": "x", "n": %d}' % number) for number in range(40))
        kv.delete_many(["k1", "k2"])
    options = SourceOptions.parse(access(node, inferSchema="true", columns="key", startingOffsets="latest"))
    assert inferred_schema(options).simpleString() == "struct<key:string,n:bigint,name:string>"
    with kv_of(node) as kv:
        kv.set_many((f"b{number}", b"\xff") for number in range(40))
    assert inferred_schema(options).names == ["key", "n", "name", "_corrupt_record"]


def test_the_sample_is_bounded(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set_many((f"k{number}", b'{"f%d": 1}' % number) for number in range(100))
    options = SourceOptions.parse(access(node, inferSchema="true", columns="key", sampleSize="7"))
    assert len(inferred_schema(options).names) == 1 + 7


def test_a_field_with_the_name_of_a_column_asks_for_a_prefix(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        kv.set("k", b'{"key": 1, "seqno": 2, "z": 3}')
    options = access(node, inferSchema="true", columns="key")
    with pytest.raises(ConfigError, match="a prefix like _dcp_, because documents have fields key, seqno"):
        inferred_schema(SourceOptions.parse(options))
    found = inferred_schema(SourceOptions.parse({**options, "metaPrefix": "_dcp_"}))
    assert found.simpleString() == "struct<_dcp_key:string,key:bigint,seqno:bigint,z:bigint>"
