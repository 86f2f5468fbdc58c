"""The native path of plain GETs and SETs: all of them from a place in the input on, in one call of the kernel.

A plain request needs nothing but the rules of documents: default collection, no CAS, no flexible framing, no xattrs, no
lock, no durable write, and a document that is in memory. The kernel leaves all other requests alone, and the command
table answers them. That table is the definition of what is right; a differential test
(packages/dcpstream-node/tests/property/test_set_paths.py) holds this path to the bytes and the stored state of it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from dcpstream.runtime.kernel import native
from dcpstream.wire import Opcode

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session

_GET, _SET = int(Opcode.GET), int(Opcode.SET)


def plain_opcodes(session: Session) -> frozenset[int]:
    """The requests that the session may make: its user has the privilege, and its bucket asks for nothing more."""
    bucket = session.bucket
    default = None if bucket is None else bucket.collections.get(0)
    identity = session.identity
    if identity.user is None or bucket is None or default is None or not bucket.takes_traffic:
        return frozenset()
    if identity.expires_at is not None:
        return frozenset()  # each request is checked against the clock
    found = []
    if not session.refusal_in("Read", 0):
        found.append(_GET)
    is_plain = not (default.max_ttl or bucket.settings.max_ttl or bucket.settings.durability_min_level)
    if is_plain and not session.refusal_in("Upsert", 0):
        found.append(_SET)
    return frozenset(found)


def path_of(kernel: ModuleType) -> Callable[[Session, bytes, int], int]:
    """The path that a kernel makes."""
    answer = kernel.answer

    def answer_plain(session: Session, data: bytes, at: int) -> int:
        """Answer plain requests in `data` from `at` on; returns where the first one begins that is not answered."""
        bucket = session.bucket
        if bucket is None:
            return at
        store, output, engine, opcodes = bucket.store, session.output, session.engine, session.plain_opcodes
        pending = store.dirty if store.is_durable else None
        with store.lock:
            stop, answers, gets, sets, stored = answer(
                data,
                at,
                bucket.vbuckets,
                bucket.dirty,
                pending,
                engine.stopwatch if session.is_tracing else None,
                _GET in opcodes,
                _SET in opcodes and store.pending_bytes < store.pending_limit,
                session.has_collections,
                session.has_tokens,
                session.datatypes,
                bucket.parameters.compression_ratio_min if bucket.keeps_compressed else -1.0,
                engine.unix_ns,
                engine.output_limit - output.nbytes,
            )
            if pending is not None:
                store.pending_bytes += stored
        if answers:
            output.pieces.append(answers)
            output.nbytes += len(answers)
            session.ops[_GET] += gets
            if sets:
                session.ops[_SET] += sets
                output.has_written = True
        result: int = stop
        return result

    return answer_plain


answer_plain = None if native is None else path_of(native)
"""The path of this process; None without the kernel."""
