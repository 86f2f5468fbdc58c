"""Answers of a connection of the key-value client."""

from __future__ import annotations

import pytest

from dcpstream.client.kv.connection import Answered
from dcpstream.client.machine.connection.handshake import MAX_REASON_BYTES
from dcpstream.wire import Status


def answered(value: bytes) -> Answered:
    return Answered(Status.TMPFAIL, 1, 0, b"", value)


def test_a_refusal_says_why_in_the_words_of_the_node() -> None:
    assert answered(b'{"error":{"context":"the disk is full"}}').reason == "the disk is full"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"full",
        b"[]",
        b"{}",
        b'{"error":1}',
        b'{"error":{"context":7}}',
        b"\xff",
        b"[" * MAX_REASON_BYTES,
        b'{"error":{"context":"%s"}}' % (b"x" * MAX_REASON_BYTES),
    ],
)
def test_a_body_that_gives_no_reason(value: bytes) -> None:
    assert answered(value).reason == ""
