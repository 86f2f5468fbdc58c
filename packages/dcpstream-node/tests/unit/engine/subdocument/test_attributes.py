"""Names, values of bytes, macros and virtual attributes."""

from __future__ import annotations

import json

import pytest

from dcpstream.wire import Datatype, Status
from dcpstream_node.engine.subdocument import attributes
from dcpstream_node.engine.subdocument.attributes import (
    MUTATION_CAS,
    MUTATION_CRC32C,
    MUTATION_SEQNO,
    Macros,
    Origin,
    expand_document,
    has_bad_binary,
    virtual_object,
)
from dcpstream_node.engine.subdocument.paths import PathError
from tests.kit.cases import each_case
from tests.kit.rules import rule

ORIGIN = Origin(
    cas=1_700_000_000_123_456_789,
    vbuuid=0xABC,
    seqno=0x10,
    rev_seqno=7,
    expiration=1_800_000_000,
    flags=0x02000006,
    datatype=int(Datatype.JSON | Datatype.XATTR),
    names=("_sync", "txn"),
    body=b"123456789",
    now_s=1_700_000_001,
)


@each_case(
    ("value", "is_bad"),
    [
        (b'"plain"', False),
        (b'"cb-content-base64-encoded:AP8="', False),
        (b'{"a":"cb-content-base64-encoded:AP8="}', False),
        (b'"cb-content-base64-encoded:A"', True),
        (b'{"a":"cb-content-base64-encoded:AP8=', True),
    ],
)
def test_bytes_that_are_not_encoded(value, is_bad):
    assert has_bad_binary(value) is is_bad


def test_the_checksum_is_made_only_for_those_who_look_at_it(monkeypatch):
    monkeypatch.setattr(attributes, "checksum", lambda body: pytest.fail("not asked for"))
    assert virtual_object(ORIGIN, b"$document.exptime") == '{"$document":{"exptime":1800000000}}'


def test_the_table_of_contents_and_the_clock():
    assert virtual_object(ORIGIN, b"$XTOC") == '{"$XTOC":["_sync","txn"]}'
    assert virtual_object(ORIGIN, b"$vbucket.HLC") == '{"$vbucket":{"HLC":{"mode":"real","now":"1700000001"}}}'
    behind = virtual_object(Origin(is_clock_behind=True), b"$vbucket")
    assert json.loads(behind)["$vbucket"]["HLC"]["mode"] == "logical"
    with pytest.raises(PathError) as error:
        virtual_object(ORIGIN, b"$other")
    assert error.value.status == Status.SUBDOC_XATTR_UNKNOWN_VATTR


@each_case(
    ("macro", "text"),
    [
        (b'"${$document.CAS}"', '"0x17979cfe3d85cd15"'),
        (b'"${$document.seqno}"', '"0x0000000000000010"'),
        (b'"${$document.vbucket_uuid}"', '"0x0000000000000abc"'),
        (b'"${$document.revid}"', '"7"'),
        (b'"${$document.exptime}"', "1800000000"),
        (b'"${$document.flags}"', "33554438"),
        (b'"${$document.value_bytes}"', "9"),
        (b'"${$document.datatype}"', '["json","xattr"]'),
        (b'"${$document.deleted}"', "false"),
        (b'"${$document.last_modified}"', "1700000000"),
    ],
)
def test_macros_about_the_document(macro, text):
    assert expand_document(ORIGIN, macro) == text


@rule("KV-SUBDOC-06")
@each_case("name", [".x", "s", "_CAS", ".value_crc32c"])
def test_macros_that_are_not_known(name):
    with pytest.raises(PathError) as error:
        expand_document(ORIGIN, b'"${$document%b}"' % name.encode())
    assert error.value.status == Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO


def test_the_final_values_replace_the_placeholders():
    taken = b'["0x0000000000000000","0x00000000"]'
    macros = Macros([taken])
    placeholders = [
        macros.placeholder(macro) for macro in (MUTATION_CAS, MUTATION_SEQNO, MUTATION_CRC32C, MUTATION_CAS)
    ]
    assert placeholders[0] == placeholders[3]
    assert len(set(placeholders)) == 3
    filled = macros.fill(",".join(placeholders).encode() + taken, cas=0x1122334455667788, seqno=0x99, body=b"123456789")
    assert filled == b'"0x8877665544332211","0x0000000000000099","0xe3069283","0x8877665544332211"' + taken
