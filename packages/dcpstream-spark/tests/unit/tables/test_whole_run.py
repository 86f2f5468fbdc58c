"""When a run over what is there has ended, before Spark 4.2."""

from __future__ import annotations

import json
from typing import Any

import dcpstream_node
from dcpstream.model import StreamOffset
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.offsets import SourceOffset
from dcpstream_spark.tables.whole_run import is_whole, wanted_seqnos
from tests.kit.spark import access, kv_of


def offset(**seqnos: int) -> Any:
    positions = {int(vbid[1:]): StreamOffset(7, seqno, seqno, seqno) for vbid, seqno in seqnos.items()}
    return SourceOffset.starting_at("b", None, positions).to_json()


def progress(start: Any, end: Any) -> dict[str, Any]:
    return {"sources": [{"startOffset": start, "endOffset": end}]}


def test_it_ends_when_the_planned_end_is_reached() -> None:
    wanted = {0: 5, 1: 3}
    half, whole = offset(v0=5, v1=2), offset(v0=5, v1=4)
    assert not is_whole(progress(None, half), "b", wanted)
    assert not is_whole(progress(json.dumps(offset(v0=0, v1=0)), json.dumps(half)), "b", wanted)
    assert is_whole(progress(half, whole), "b", wanted)
    assert not is_whole(progress(None, offset(v0=9)), "b", wanted), "a vbucket that is not in the plan"


def test_it_ends_when_nothing_moves() -> None:
    """A failover may have taken the wanted seqnos away."""
    assert is_whole(None, "b", {0: 5})
    assert is_whole(progress(offset(v0=1), offset(v0=1)), "b", {0: 5})


def test_the_seqnos_to_reach() -> None:
    with dcpstream_node.Node(vbuckets=4) as node:
        before = sum(wanted_seqnos(SourceOptions.parse(access(node))).values())
        with kv_of(node) as kv:
            kv.set_many((f"k{n}", b"1") for n in range(40))
        found = wanted_seqnos(SourceOptions.parse(access(node)))
        assert sum(found.values()) == 40 + before
        some = wanted_seqnos(SourceOptions.parse(access(node, where="vbucket in (1, 3)")))
        assert some == {vbid: found[vbid] for vbid in (1, 3)}
