"""The native path of plain GETs and SETs: all of them from a place in the input on, in one call of the kernel.

It answers the requests that the short paths (`fast`) answer, as far as their documents are in memory, also those that
come or are stored compressed, and leaves all others alone. The command table is the definition of what is right; a
differential test (packages/dcpstream-node/tests/property/test_set_paths.py) holds all paths to the bytes and the stored
state of it.
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


def path_of(kernel: ModuleType) -> Callable[[Session, bytes, int], int]:
    """The path that a kernel makes."""
    answer = kernel.answer

    def answer_plain(session: Session, data: bytes, at: int) -> int:
        """Answer plain requests in `data` from `at` on; returns where the first one begins that is not answered."""
        bucket = session.bucket
        if bucket is None:
            return at
        store, output, engine, fast = bucket.store, session.output, session.engine, session.fast
        pending = store.dirty if store.is_durable else None
        with store.lock:
            stop, answers, gets, sets, stored = answer(
                data,
                at,
                bucket.vbuckets,
                bucket.dirty,
                pending,
                engine.stopwatch if session.is_tracing else None,
                _GET in fast,
                _SET in fast and store.pending_bytes < store.pending_limit,
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
