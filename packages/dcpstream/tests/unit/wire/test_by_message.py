"""A table of one thing for each message."""

import pytest

from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.layout import Side
from dcpstream.wire.messages import REQUESTS, sent_by
from dcpstream.wire.messages.dcp import Control, Deletion, DeletionV2, Mutation


def test_an_entry_is_found_by_opcode_and_all_shapes_of_an_opcode_share_it():
    table = ByMessage("a test")
    assert table.of(Mutation, Deletion, DeletionV2)(str) is str
    assert table == {Mutation.layout.opcode: str, Deletion.layout.opcode: str}


def test_a_message_has_one_entry():
    table = ByMessage("a test")
    table.of(Mutation)(str)
    with pytest.raises(TypeError, match="a test has two entries for Mutation"):
        table.of(Mutation)(int)


def test_a_table_that_lacks_a_message_is_refused():
    table = ByMessage("a test")
    table.of(Mutation)(str)
    rows = [layout for layout in REQUESTS if layout.name in ("Mutation", "Deletion", "Expiration")]
    with pytest.raises(TypeError, match="a test has no entry for Deletion, Expiration:"):
        table.require(rows)
    table.of(Deletion)(str)
    table.require([layout for layout in rows if layout.name != "Expiration"])
    with pytest.raises(TypeError, match="an entry for Mutation, which is noted"):
        table.require(rows[:1], but=[Mutation])


def test_what_is_always_refused_need_not_be_handled():
    names = {layout.name for layout in sent_by(Side.PRODUCER)}
    assert {"Mutation", "SnapshotMarkerV22", "DcpNoop"} <= names
    assert names.isdisjoint({"SnapshotMarkerV21", "DcpFlush", "OsoSnapshot", Control.__name__})
