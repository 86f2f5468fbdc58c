"""The topology of a vbucket: the nodes that durable writes need.

One chain of node names, two during a rebalance. The first name of a chain is the active copy; a name that is null or
empty stands for a replica that is nowhere. The vbucket keeps the chains as JSON text. Knows nothing of frames.

Source: kv_engine engines/ep/src/vbucket.cc (validateSetStateMeta, validateReplicationTopology),
durability/durability_monitor_impl.cc (ReplicationChain).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

MAX_CHAINS = 2
MAX_CHAIN_NODES = 4
MAX_NODES_OF_DURABLE_WRITES = 3
"""Nodes that are there in a chain of which durable writes are possible: the active copy and two replicas."""

Chains = tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """The fields of SET_VBUCKET other than the role.

    Attributes:
        topology: JSON text of the chains; "" if nothing is said of them.
        is_refused: it is no topology: the server gives up the connection, and the vbucket stays as it was.
        is_unusable: a chain names a node twice, or an active copy without a name. The server finds that out in the
            middle of the change: the vbucket is active then, its chains are not changed, and the connection is given
            up.
    """

    topology: str = ""
    is_refused: bool = False
    is_unusable: bool = False


NOTHING = Meta()
REFUSED = Meta(is_refused=True)


def read_meta(value: bytes) -> Meta | None:
    """The fields in the value of SET_VBUCKET; None if it is no JSON."""
    try:
        content = json.loads(value.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        return REFUSED
    except ValueError:
        return None
    if content is None or content in ({}, []):
        return NOTHING
    if not isinstance(content, dict) or min(content) != "topology" or not _is_topology(content["topology"]):
        return REFUSED  # keys are looked at in order, and nothing is once the topology was found
    topology = content["topology"]
    text = json.dumps(topology, separators=(",", ":"))
    return Meta(text, is_unusable=not all(map(_is_usable, topology)))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _is_topology(content: Any) -> bool:
    return isinstance(content, list) and 0 < len(content) <= MAX_CHAINS and all(map(_is_chain, content))


def _is_chain(content: Any) -> bool:
    if not isinstance(content, list) or not 0 < len(content) <= MAX_CHAIN_NODES or content[0] is None:
        return False
    return all(name is None or isinstance(name, str) for name in content)


def _is_usable(chain: Sequence[str | None]) -> bool:
    named = [name for name in chain if name]
    return bool(chain[0]) and len(named) == len(set(named))


def parse_topology(text: str) -> Chains:
    """Chains of names from the JSON text that a vbucket keeps; nothing if there is none."""
    return tuple(tuple(name or None for name in chain) for chain in json.loads(text)) if text else ()


def is_possible(chains: Chains) -> bool:
    """Whether a majority of every chain could ever have a prepare."""
    return bool(chains) and all(
        _is_usable(chain)
        and len(chain) // 2 + 1 <= sum(name is not None for name in chain) <= MAX_NODES_OF_DURABLE_WRITES
        for chain in chains
    )
