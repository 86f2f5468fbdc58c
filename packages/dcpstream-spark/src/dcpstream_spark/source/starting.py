"""The start of a query and the end of a batch: the user's options, resolved with observations of the cluster.

Pure functions over observations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dcpstream.client.machine.resume import BranchState
from dcpstream.errors import ConfigError, ConnectionLost
from dcpstream.model import StreamOffset
from dcpstream_spark.options import OffsetSpec
from dcpstream_spark.source.offsets import user_position, user_seqno

T = TypeVar("T")

LATEST, EARLIEST = "-1", "-2"
"""Seqnos of single vbuckets in startingOffsets and endingOffsets with a special meaning, as in Spark's Kafka source."""


def start_positions(
    spec: OffsetSpec, vbucket_count: int, observed: Mapping[int, BranchState]
) -> dict[int, StreamOffset]:
    """A position for every vbucket.

    Args:
        spec: startingOffsets. Vbuckets that its positions leave out start at the beginning.
        vbucket_count: of the bucket.
        observed: of all vbuckets for "latest", of the named ones for positions; not used for "earliest".

    Raises:
        ConfigError: a position is invalid.
        ConnectionLost: a needed vbucket was not observed.
    """
    positions: dict[int, StreamOffset] = dict.fromkeys(range(vbucket_count), StreamOffset.ZERO)
    if spec.kind == "latest":
        require_all(observed, vbucket_count)
        for vbid, state in observed.items():
            if state.high_seqno:
                high = state.high_seqno
                positions[vbid] = StreamOffset(state.vbuuid, high, high, high)
    for vbid, data in spec.positions.items():
        if vbid not in positions:
            raise ConfigError("startingOffsets", vbid, f"vbuckets below {vbucket_count}")
        if str(data) == EARLIEST:
            continue
        if vbid not in observed:
            raise ConnectionLost(f"no node has vbucket {vbid} active now, so its branch is not known")
        if str(data) == LATEST:
            high = observed[vbid].high_seqno
            positions[vbid] = StreamOffset(observed[vbid].vbuuid, high, high, high) if high else StreamOffset.ZERO
            continue
        read = functools.partial(user_position, vbuuid_of_branch=observed[vbid].vbuuid)
        positions[vbid] = _read("startingOffsets", data, read)
    return positions


def end_seqnos(spec: OffsetSpec, high_seqnos: Mapping[int, int], start: Mapping[int, StreamOffset]) -> dict[int, int]:
    """The last seqno to read of every vbucket.

    Args:
        spec: endingOffsets. Vbuckets that its positions leave out, or that have LATEST, are read up to their high
            seqno.
        high_seqnos: of all vbuckets.
        start: where the batch begins.

    Raises:
        ConfigError: a seqno does not exist yet, so a batch would wait for it, or lies below the start.
    """
    ends = dict(high_seqnos)
    for vbid, data in spec.positions.items():
        if vbid not in high_seqnos:
            raise ConfigError("endingOffsets", vbid, f"vbuckets below {len(high_seqnos)}")
        if str(data) == LATEST:
            continue
        if str(data) == EARLIEST:
            raise ConfigError("endingOffsets", f"{vbid}: {data}", f"a seqno, or {LATEST} for the latest")
        seqno = _read("endingOffsets", data, user_seqno)
        if seqno > high_seqnos[vbid]:
            raise ConfigError(
                "endingOffsets", f"{vbid}: {seqno}", f"at most the vbucket's high seqno, {high_seqnos[vbid]}"
            )
        begin = start.get(vbid, StreamOffset.ZERO).seqno
        if seqno < begin:
            raise ConfigError("endingOffsets", f"{vbid}: {seqno}", f"at least the start of the read, seqno {begin}")
        ends[vbid] = seqno
    return ends


def require_all(known: Mapping[int, object], vbucket_count: int) -> None:
    """Raise unless every vbucket is known.

    Raises:
        ConnectionLost: some are not, because no node that answers has them active.
    """
    missing = [vbid for vbid in range(vbucket_count) if vbid not in known]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise ConnectionLost(f"{len(missing)} of {vbucket_count} vbuckets ({shown}) have no active node that answers")


def _read(option: str, data: Any, read: Callable[[Any], T]) -> T:
    try:
        return read(data)
    except ValueError as error:
        raise ConfigError(option, data, f"a seqno or a position ({error})") from None
