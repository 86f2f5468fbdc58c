"""The defaults in the help are those of the node."""

from __future__ import annotations

from dcpstream.cli import connection_options
from dcpstream.dcp.sasl import DEFAULT_ITERATIONS, MAX_ITERATIONS
from dcpstream.wire.release import DEFAULT_RELEASE, RELEASES
from dcpstream.wire.server_bugs import ServerBug
from dcpstream_node import embedded
from dcpstream_node.commands import node_defaults
from dcpstream_node.shell.tls import CLIENT_AUTH, USER_FROM


def test_they_are_those_of_their_owners() -> None:
    assert node_defaults.FLUSH_INTERVAL_S == embedded.DEFAULT_FLUSH_INTERVAL_S
    assert (DEFAULT_RELEASE.name, tuple(RELEASES)) == (node_defaults.RELEASE, node_defaults.RELEASES)
    assert tuple(bug.id for bug in ServerBug) == node_defaults.SERVER_BUGS
    assert node_defaults.PLAIN_POLICIES == embedded.PLAIN_POLICIES
    assert (node_defaults.CLIENT_AUTH, node_defaults.USER_FROM) == (CLIENT_AUTH, USER_FROM)
    assert node_defaults.PASSWORD_ITERATIONS == DEFAULT_ITERATIONS
    assert node_defaults.PASSWORD_ITERATIONS_MAX == MAX_ITERATIONS
    assert connection_options.DEFAULT_USERNAME == embedded.DEFAULT_USERNAME
    assert connection_options.DEFAULT_PASSWORD == embedded.DEFAULT_PASSWORD
