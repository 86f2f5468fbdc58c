"""The host and the port of a node that is to be added, as people write them."""

from __future__ import annotations

from dcpstream_node.rest.topology import _place
from tests.kit.cases import each_case


@each_case(
    ("text", "host", "port"),
    [
        (" h ", "h", 8091),
        ("http://h/", "h", 8091),
        ("https://h", "h", 18091),
        ("HTTPS://h:9000/", "h", 9000),
        ("h:0", "h", 0),
        ("[::1]", "::1", 8091),
        ("http://[::1]/", "::1", 8091),
        ("[::1]:9000/", "::1", 9000),
    ],
)
def test_a_place(text: str, host: str, port: int) -> None:
    assert _place(text) == (host, port, [])


@each_case(
    ("text", "why"),
    [
        ("", "Hostname is required."),
        ("ftp://h", "Unsupported protocol ftp"),
        ("h:80", "The port number must be greater than 1023"),
        ("::1", "Malformed URL ::1"),
        ("[5:0]:9000", "Malformed URL [5:0]:9000"),
        ("a b:9000", "Malformed URL a b:9000"),
    ],
)
def test_no_place(text: str, why: str) -> None:
    assert _place(text)[2][0].startswith(why)
