"""A client's documents: at the end of each snapshot a state that some branch was in, and in the end the bucket's."""

from __future__ import annotations

from lab.simulation.judges.history import Branch, Documents, Histories, Violation

Row = tuple[tuple[int, bytes], bytes | None]
"""((collection id, key), value or None for a deletion)."""
MAX_SEQNO = 1 << 64
DROPPED = b""
"""The key of the row that says that a collection was dropped; no document has it."""


class TableJudge:
    """The rows that a client keeps, by vbucket and seqno, as a table of changes keeps them.

    Attributes:
        rows: vbucket → seqno → row.
        rollbacks: those that were reported to the client.
        compared: how many ends of snapshots were compared.
        dropped: reports of dropped collections to the client.
    """

    def __init__(self, name: str, histories: Histories) -> None:
        self._name = name
        self._histories = histories
        self.rows: dict[int, dict[int, Row]] = {}
        self.rollbacks = 0
        self.compared = 0
        self.dropped = 0

    def add(self, vbid: int, seqno: int, row: Row) -> None:
        """A row was delivered."""
        rows = self.rows.setdefault(vbid, {})
        number = row[0][0]
        if number and row[0][1] != DROPPED:
            over = [at for at, (key, _) in rows.items() if at < seqno and key == (number, DROPPED)]
            if over:
                raise Violation(
                    f"nothing comes of a dropped collection: {self._name} got seqno {seqno} of collection {number} of "
                    f"vbucket {vbid}, which was dropped at seqno {over[0]}"
                )
        rows[seqno] = row

    def drop(self, vbid: int, seqno: int, collection: int) -> None:
        """A dropped collection was reported to the client."""
        self.dropped += 1
        self.add(vbid, seqno, ((collection, DROPPED), None))

    def roll_back(self, vbid: int, seqno: int) -> None:
        """Rows above a seqno are void."""
        self.rollbacks += 1
        self.rows[vbid] = {at: row for at, row in self.rows.get(vbid, {}).items() if at <= seqno}

    def documents(self, vbid: int, seqno: int = MAX_SEQNO) -> Documents:
        """The documents that the rows of a vbucket up to a seqno make."""
        found: Documents = {}
        for at, (key, value) in sorted(self.rows.get(vbid, {}).items()):
            if at > seqno:
                break
            if key[1] == DROPPED:
                found = {other: value for other, value in found.items() if other[0] != key[0]}
            elif value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found

    def snapshot_ended(self, vbid: int, vbuuid: int, seqno: int) -> None:
        """The client stands at the end of a snapshot, and has been given everything up to there."""
        branch = self._histories.branches.get((vbid, vbuuid))
        if branch is None:
            raise Violation(f"{self._name} stands on branch {vbuuid:x} of vbucket {vbid}, which never was")
        if seqno > branch.high and self._histories.newest.get(vbid) is not branch:
            return  # a node that was given up, and is not looked at, wrote on for a while
        expected = branch.documents(seqno)
        if expected is None:
            return
        self.compared += 1
        self._compare(vbid, expected, self.documents(vbid, seqno), f"at the end of a snapshot, seqno {seqno}")
        self._look_above(branch, seqno)

    def _look_above(self, branch: Branch, seqno: int) -> None:
        """Rows above its position that a client had before it began again come again: they are of the same branch."""
        rows = {at: row for at, row in self.rows[branch.vbid].items() if at > seqno} if branch.vbid in self.rows else {}
        if not rows:
            return
        known = {item.seqno: item for item in branch.items}
        for at, (key, value) in rows.items():
            item = known.get(at)
            is_known = item is not None and (
                item.dropped == key[0] if key[1] == DROPPED else (item.key, item.value) == (key, value)
            )
            if at > branch.base and not is_known:
                raise Violation(
                    f"rows of another branch are void: {self._name} goes on at {seqno} of branch {branch.vbuuid:x} of "
                    f"vbucket {branch.vbid}, and has {key} at {at}, where the branch has {item}"
                )

    def finish(self) -> None:
        """The client has read everything: it equals the bucket."""
        for vbid, branch in self._histories.newest.items():
            self._compare(vbid, branch.documents(branch.high) or {}, self.documents(vbid), "in the end")

    def _compare(self, vbid: int, expected: Documents, found: Documents, when: str) -> None:
        if found != expected:
            more = {key: value for key, value in found.items() if expected.get(key) != value}
            less = {key: value for key, value in expected.items() if found.get(key) != value}
            raise Violation(
                f"a client equals the history {when}: of vbucket {vbid}, {self._name} has {more} in place of {less}"
            )
