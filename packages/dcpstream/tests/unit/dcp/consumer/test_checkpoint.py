"""The durable writes of a checkpoint that a copy receives."""

from __future__ import annotations

import pytest

from dcpstream.dcp.consumer import checkpoint
from dcpstream.dcp.consumer.checkpoint import ReceivedCheckpoint
from dcpstream.errors import RemoteProtocolError
from tests.kit.rules import rule

A, B = b"\0a", b"\0b"


@rule("KV-COPY-16")
def test_what_a_checkpoint_may_hold():
    received = ReceivedCheckpoint(1, 5)
    received.plain_write(A, 5)
    received.plain_write(A, 6)
    received.prepare_or_abort(A, 7)
    received.prepare_or_abort(B, 8)
    received.commit(B, 9, 4)


@rule("KV-COPY-16")
def test_a_plain_version_after_a_commit():
    received = ReceivedCheckpoint(1, 1)
    received.prepare_or_abort(A, 1)
    received.commit(A, 2, 0)
    received.plain_write(B, 3)
    with pytest.raises(RemoteProtocolError, match=r"vb 1: the checkpoint from seqno 1 has .* at 4"):
        received.plain_write(A, 4)


@rule("KV-COPY-16")
def test_a_commit_after_another_version():
    received = ReceivedCheckpoint(1, 3)
    received.commit(A, 5, 2)
    for key, version_seqno in ((A, 5), (B, 3)):
        with pytest.raises(RemoteProtocolError):
            received.commit(key, 6, version_seqno)


@rule("KV-COPY-16")
def test_a_prepare_after_a_prepare_or_abort():
    received = ReceivedCheckpoint(1, 1)
    received.prepare_or_abort(A, 1)
    with pytest.raises(RemoteProtocolError):
        received.prepare_or_abort(A, 2)


def test_a_checkpoint_of_too_many_keys_is_no_longer_looked_at(monkeypatch):
    monkeypatch.setattr(checkpoint, "KEYS_MAX", 3)
    received = ReceivedCheckpoint(1, 1)
    for number in range(1, 5):
        received.prepare_or_abort(b"%d" % number, number)
    received.prepare_or_abort(b"1", 5)
