"""The table of commands."""

from __future__ import annotations

import pytest

from dcpstream.wire import Opcode
from dcpstream.wire.layout import Phase, Side
from dcpstream.wire.messages import DCP_OPCODES, REQUESTS
from dcpstream.wire.release import release_of
from dcpstream_node.engine.access.roles import ALL_PRIVILEGES
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers import COMMANDS


def answer(session, frame):
    """A handler that does nothing."""


def test_a_node_of_an_older_release_does_not_have_what_came_later():
    old, new = (set(COMMANDS.known_to(release_of(name)).opcodes()) for name in ("7.2", "7.6"))
    assert new - old == {layout.opcode for layout in REQUESTS if layout.since == "7.6"} - old
    assert {Opcode.RANGE_SCAN_CREATE, Opcode.PAUSE_BUCKET} <= new - old


def test_every_request_declares_its_privilege_and_all_shapes_of_an_opcode_need_the_same_one():
    found = {}
    for layout in REQUESTS:
        assert layout.privilege is not None, f"{layout.name} is refused: declare its privilege"
        assert set(layout.privilege.replace("|", " ").split()) <= ALL_PRIVILEGES
        found.setdefault(layout.opcode, set()).add((layout.privilege, layout.anywhere))
    assert all(len(needs) == 1 for needs in found.values())


def test_an_opcode_has_one_handler_and_a_declared_request():
    table = CommandTable()
    table.add(Opcode.GET, answer)
    with pytest.raises(AssertionError, match="two handlers"):
        table.add(Opcode.GET, answer)
    with pytest.raises(AssertionError, match="no message is declared"):
        table.add(0xEE, answer)


def test_the_node_answers_every_request_of_clients_that_is_declared():
    requests = [layout for layout in REQUESTS if layout.opcode not in DCP_OPCODES]
    of_clients = {layout.opcode for layout in requests if Side.CLIENT in layout.sent_by}
    assert set(COMMANDS.opcodes()) == of_clients
    assert all(layout.phase is not Phase.DCP for layout in requests)
