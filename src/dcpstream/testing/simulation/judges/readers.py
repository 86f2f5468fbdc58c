"""What a client holds: at the end of each snapshot it is a state that some branch was in, and in the end the bucket."""

from __future__ import annotations

from dcpstream.testing.simulation.judges.history import Documents, Histories, Violation

Row = tuple[tuple[int, bytes], bytes | None]
"""((collection id, key), value or None for a deletion)."""


class TableJudge:
    """The rows that a client keeps, by vbucket and seqno, as a table of changes keeps them.

    Attributes:
        rows: vbucket → seqno → row.
        rollbacks: how many the client was told of.
        compared: how many ends of snapshots were compared.
    """

    def __init__(self, name: str, histories: Histories) -> None:
        self._name = name
        self._histories = histories
        self.rows: dict[int, dict[int, Row]] = {}
        self.rollbacks = 0
        self.compared = 0

    def add(self, vbid: int, seqno: int, row: Row) -> None:
        """A row was delivered."""
        self.rows.setdefault(vbid, {})[seqno] = row

    def roll_back(self, vbid: int, seqno: int) -> None:
        """Rows above a seqno are void."""
        self.rollbacks += 1
        self.rows[vbid] = {at: row for at, row in self.rows.get(vbid, {}).items() if at <= seqno}

    def documents(self, vbid: int) -> Documents:
        """What the rows of a vbucket make."""
        found: Documents = {}
        for _, (key, value) in sorted(self.rows.get(vbid, {}).items()):
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found

    def snapshot_ended(self, vbid: int, vbuuid: int, seqno: int) -> None:
        """The client stands at the end of a snapshot, and has been given everything up to there."""
        branch = self._histories.branches.get((vbid, vbuuid))
        if branch is None:
            raise Violation(f"{self._name} stands on branch {vbuuid:x} of vbucket {vbid}, which never was")
        expected = branch.documents(seqno)
        if expected is None:
            return
        self.compared += 1
        self._compare(vbid, expected, f"at the end of a snapshot, seqno {seqno} of branch {vbuuid:x}")

    def finish(self) -> None:
        """The client has read everything: it equals the bucket."""
        for vbid, branch in self._histories.newest.items():
            self._compare(vbid, branch.documents(branch.high) or {}, "in the end")

    def _compare(self, vbid: int, expected: Documents, when: str) -> None:
        found = self.documents(vbid)
        if found != expected:
            more = {key: value for key, value in found.items() if expected.get(key) != value}
            less = {key: value for key, value in expected.items() if found.get(key) != value}
            raise Violation(
                f"a client equals the history {when}: of vbucket {vbid}, {self._name} has {more} in place of {less}"
            )
