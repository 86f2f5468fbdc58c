"""The true history of every vbucket: its branches, and what each of them wrote, in order.

Theory of operation. After each exchange the judge looks at the copies of the node that took part. Items that an active
copy has appended are written down under its newest branch. A copy that is active on a branch that was not seen before
begins a `Branch`: with the items that the copy has, and with the branch that it comes from. The *common point* of the
two is the highest seqno at which both had the same documents; the judge finds it by comparing, not by believing the
failover log.

From that follow the judgements of this module: a vbucket has one active copy; a branch only grows; a promoted copy has
nothing that its branch never had, and its failover log claims no more than it has; a takeover loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.simulation.judges import frames

ACTIVE = 1
Documents = dict[tuple[int, bytes], bytes]
"""(collection id, key) → value."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Item:
    """One change: a document's, or something that takes a seqno (then `key` is None), such as a dropped collection."""

    seqno: int
    key: tuple[int, bytes] | None
    value: bytes | None
    dropped: int | None = None


@dataclass(slots=True)
class Branch:
    """One branch of a vbucket's history.

    Attributes:
        vbuuid: its name.
        parent: the branch that it comes from.
        common: the highest seqno up to which it and the parent had the same documents.
        base: the high seqno with which it began.
        items: what its first copy had, and what was written on it, in order.
    """

    vbid: int
    vbuuid: int
    parent: Branch | None
    common: int
    base: int
    items: list[Item] = field(default_factory=list)

    @property
    def high(self) -> int:
        """The last seqno."""
        return max(self.base, self.items[-1].seqno if self.items else 0)

    def documents(self, seqno: int) -> Documents | None:
        """The documents at a seqno; None if this branch never was in such a state as a whole."""
        if seqno >= self.base:
            return replay(self.items, seqno)
        if self.parent is not None and seqno <= self.common:
            return self.parent.documents(seqno)
        return None

    def check_collections(self) -> None:
        """Nothing is written into a collection after it was dropped. Its id never comes again."""
        dropped: set[int] = set()
        for item in self.items:
            if item.dropped is not None:
                dropped.add(item.dropped)
            elif item.key is not None and item.key[0] in dropped:
                raise Violation(
                    f"nothing is written into a dropped collection: vbucket {self.vbid} has {item} after the "
                    "collection was dropped"
                )

    def line(self) -> list[Branch]:
        """This branch, and those that it comes from."""
        found: list[Branch] = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found


def replay(items: list[Item], seqno: int) -> Documents:
    """The documents after all changes up to a seqno."""
    found: Documents = {}
    for item in items:
        if item.seqno > seqno:
            break
        if item.key is None:
            if item.dropped is not None:
                found = {key: value for key, value in found.items() if key[0] != item.dropped}
            continue
        if item.value is None:
            found.pop(item.key, None)
        else:
            found[item.key] = item.value
    return found


class Histories:
    """The histories of one bucket.

    Args:
        is_given_up: whether a node was failed over, so that another one may begin a branch; by default any was.

    Attributes:
        branches: (vbucket, vbuuid) → branch.
        newest: vbucket → the branch that is written now, or was written last.
    """

    def __init__(self, is_given_up: Callable[[str], bool] = lambda _: True) -> None:
        self.branches: dict[tuple[int, int], Branch] = {}
        self.newest: dict[int, Branch] = {}
        self._is_given_up = is_given_up
        self._serving: dict[int, str] = {}
        self._served: dict[int, str] = {}
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._held: dict[tuple[str, int], int] = {}

    def forget_node(self, name: str) -> None:
        """A node is gone, with what it served."""
        for nodes in (self._serving, self._served):
            for vbid in [vbid for vbid, node in nodes.items() if node == name]:
                del nodes[vbid]
        for key in [key for key in {**self._seen, **self._held} if key[0] == name]:
            self._seen.pop(key, None)
            self._held.pop(key, None)

    def emptied(self) -> None:
        """The bucket was emptied. What was read before may be reported for a moment yet, so its branches stay known."""
        for nodes in (self._serving, self._served, self._seen, self._held, self.newest):
            nodes.clear()

    def serving(self, vbid: int) -> str | None:
        """The node whose copy is active."""
        return self._serving.get(vbid)

    def look(self, name: str, vbid: int, vbucket: Any) -> None:
        """Look at a copy of a node: its own object, or None if it has none."""
        is_active = vbucket is not None and vbucket.log.state == ACTIVE
        serving = self._serving.get(vbid)
        if not is_active:
            self._held[name, vbid] = 0 if vbucket is None else vbucket.log.high_seqno
            if serving == name:
                del self._serving[vbid]
                self._seen.pop((name, vbid), None)
            if vbucket is not None and self._served.get(vbid) == name and serving in {None, name}:
                self._take_last(vbid, vbucket)
            return
        if serving != name:
            if serving is not None:
                raise Violation(f"one active copy: vbucket {vbid} is active on {serving} and on {name}")
            self._serving[vbid] = name
            before, self._served[vbid] = self._served.get(vbid, name), name
            is_handed_over = before != name and not self._is_given_up(before)
            if is_handed_over and (vbid, vbucket.vbuuid) not in self.branches:
                raise Violation(
                    f"a branch goes on when it is handed over: {name} began another one of vbucket {vbid}, although "
                    f"{before} was there to hand it over"
                )
        log = vbucket.log
        now = vbucket.vbuuid, log.high_seqno
        seen = self._seen.get((name, vbid))
        if seen == now:
            return
        self._seen[name, vbid] = now
        branch = self.branches.get((vbid, now[0]))
        if branch is None:
            self._begin(name, vbid, log)
        elif seen is None or seen[0] != now[0]:
            self._take_over(name, branch, log)
        elif now[1] < branch.high:
            raise Violation(f"a branch only grows: vbucket {vbid} of {name} went back to {now[1]} from {branch.high}")
        else:
            new = items_of(log, branch.high)
            branch.items += new
            if any(item.key is not None and item.key[0] for item in new):
                branch.check_collections()

    def _take_last(self, vbid: int, vbucket: Any) -> None:
        """A copy has given its role up: it may have written in the same exchange, before it did.

        Until another one has the role it still decides durable writes, while it hands over.
        """
        branch = self.branches.get((vbid, vbucket.vbuuid))
        if branch is not None and vbucket.log.high_seqno > branch.high:
            branch.items += items_of(vbucket.log, branch.high)

    def _begin(self, name: str, vbid: int, log: Any) -> None:
        entries = [(entry.vbuuid, entry.seqno) for entry in log.failover_log]
        items = items_of(log, 0)
        parent = next(
            (self.branches[vbid, vbuuid] for vbuuid, _ in entries[1:] if (vbid, vbuuid) in self.branches), None
        )
        # The first copy of a vbucket was empty, so every state of it is known.
        base = 0 if parent is None else log.high_seqno
        branch = Branch(vbid, entries[0][0], parent, 0, base, items)
        if parent is not None:
            known = _possible(parent)
            # A copy that is promoted may write at once: events of collections, and the outcome of durable writes.
            base = branch.base = min(self._held.get((name, vbid), base), base)
            had = [item for item in items if item.seqno <= base]
            for item in had:
                if known.get(item.seqno) != item:
                    raise Violation(
                        f"a promoted copy has what its branch had: vbucket {vbid} of {name} has {item}, "
                        f"branch {parent.vbuuid:x} had {known.get(item.seqno)}"
                    )
            # A copy may lack documents of a collection that its source had dropped already. It drops it now, too.
            branch.common = _common(parent, had, base, _dropped_after(items, base))
            if entries[0][1] > branch.common:
                raise Violation(
                    f"a new branch begins where the old one is known: vbucket {vbid} of {name} claims to share all up "
                    f"to {entries[0][1]} with branch {parent.vbuuid:x}, but only has it up to {branch.common}"
                )
        elif vbid in self.newest and log.high_seqno:
            raise Violation(f"vbucket {vbid} of {name} began again, and is not empty")
        self.branches[vbid, branch.vbuuid] = branch
        self.newest[vbid] = branch

    def _take_over(self, name: str, branch: Branch, log: Any) -> None:
        """A copy became active without a new branch: it must have all of it."""
        items = items_of(log, 0)
        gone = _dropped_after(items, branch.high)
        if log.high_seqno < branch.high:
            raise Violation(
                f"a takeover loses nothing: vbucket {branch.vbid} of {name} is active at seqno {log.high_seqno} of a "
                f"branch that was at {branch.high}"
            )
        if _without(replay(items, branch.high), gone) != _without(replay(branch.items, branch.high), gone):
            raise Violation(
                f"a takeover loses nothing: vbucket {branch.vbid} of {name} has other documents than before"
            )
        branch.items += items_of(log, branch.high)
        self.newest[branch.vbid] = branch

    def common(self, vbid: int, vbuuid: int, other: Branch) -> int | None:
        """The highest seqno up to which two branches are one; None if the first was never seen."""
        branch = self.branches.get((vbid, vbuuid))
        if branch is None:
            return None
        mine, others = branch.line(), other.line()
        shared = next((each for each in mine if each in others), None)
        if shared is None:
            return 0
        ways = [*mine[: mine.index(shared)], *others[: others.index(shared)]]
        return min((each.common for each in ways), default=shared.high)


def _possible(branch: Branch) -> dict[int, Item]:
    """Seqno → every item that a copy on the branch may have: its own, and what it shares with those before it."""
    found: dict[int, Item] = {}
    limit = branch.high
    for each in branch.line():
        for item in each.items:
            if item.seqno <= limit:
                found.setdefault(item.seqno, item)
        limit = min(limit, each.common)
    return found


def _common(parent: Branch, items: list[Item], high: int, gone: set[int]) -> int:
    """The highest seqno, up to `high`, at which the parent had the documents that the items give.

    Args:
        gone: collections that do not count.
    """
    for seqno in sorted({0, high, *(item.seqno for item in items)}, reverse=True):
        before, now = parent.documents(seqno), replay(items, seqno)
        if before is not None and _without(before, gone) == _without(now, gone):
            return seqno
    return 0


def _dropped_after(items: list[Item], seqno: int) -> set[int]:
    """The collections that were dropped above a seqno."""
    return {item.dropped for item in items if item.seqno > seqno and item.dropped is not None}


def _without(documents: Documents, gone: set[int]) -> Documents:
    return {key: value for key, value in documents.items() if key[0] not in gone} if gone else documents


def items_of(log: Any, after: int) -> list[Item]:
    """The items of a copy above a seqno, every version that it has."""
    found: list[Item] = []
    while log.high_seqno > after:
        block = log.read_history(after, log.high_seqno, max_bytes=1 << 20)
        if not block.count:
            break
        for message in frames.cut(bytes(block.data)):
            seqno = message.u64(0)  # a stored abort has its own seqno first, unlike one on the wire
            assert seqno > after, "a copy gives its items in order"
            if message.opcode == frames.MUTATION:
                found.append(Item(seqno, frames.collection_and_key(message.key), message.value))
            elif message.opcode in {frames.DELETION, frames.EXPIRATION}:
                found.append(Item(seqno, frames.collection_and_key(message.key), None))
            elif message.opcode == frames.SYSTEM_EVENT:
                found.append(Item(seqno, None, None, frames.dropped_collection(message)))
            else:
                found.append(Item(seqno, None, None))
        after = found[-1].seqno
    return found
