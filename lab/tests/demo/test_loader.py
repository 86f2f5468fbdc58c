"""The loader against a bucket that loses what it had not persisted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dcpstream.errors import ConnectionLost, InvalidArguments, TemporaryFailure
from dcpstream_demo.flights import Change
from dcpstream_demo.loader import WINDOW, Loader, LoaderState, Token

DONE = frozenset({LoaderState.DONE})
HOLDING = frozenset({LoaderState.HOLDING, LoaderState.DONE})
VBUCKETS = 4


class Node:
    """Vbuckets with a log of writes, a persisted seqno and branches; `kill` drops what is not persisted."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.logs: dict[int, list[Change]] = {vbid: [] for vbid in range(VBUCKETS)}
        self.persisted = dict.fromkeys(range(VBUCKETS), 0)
        self.branches: dict[int, list[tuple[int, int]]] = {vbid: [(1, 0)] for vbid in range(VBUCKETS)}
        self.incarnation = 1
        self.is_up = True
        self.flushes = True
        self.writes_left: int | None = None
        self.chance = chance or random.Random(0)

    def kill(self) -> None:
        self.is_up = False
        self.incarnation += 1
        for vbid, log in self.logs.items():
            del log[self.persisted[vbid] :]
            self.branches[vbid].insert(0, (self.incarnation, len(log)))

    def flush(self) -> None:
        self.persisted = {vbid: len(log) for vbid, log in self.logs.items()}

    def state(self) -> dict[bytes, bytes | None]:
        return {change.key: change.value for log in self.logs.values() for change in log}

    def connect(self) -> Connection:
        if not self.is_up:
            raise ConnectionLost("nobody listens")
        return Connection(self)


class Connection:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.incarnation = node.incarnation

    def write(self, changes: Sequence[Change]) -> Sequence[Token]:
        tokens = []
        for change in changes:
            self._check()
            if self.node.writes_left is not None:
                self.node.writes_left -= 1
                if self.node.writes_left < 0:
                    self.node.writes_left = None
                    self.node.kill()
                    self.node.is_up = True
                    self._check()
            vbid = change.key[-1] % VBUCKETS
            log = self.node.logs[vbid]
            log.append(change)
            tokens.append(Token(vbid, self.node.branches[vbid][0][0], len(log)))
        return tokens

    def persisted(self, branches: Sequence[tuple[int, int]]) -> Sequence[int]:
        self._check()
        if self.node.flushes:
            self.node.flush()
        return [self._survived(vbid, vbuuid) for vbid, vbuuid in branches]

    def _survived(self, vbid: int, vbuuid: int) -> int:
        branches = self.node.branches[vbid]
        at = next(index for index, (name, _) in enumerate(branches) if name == vbuuid)
        return self.node.persisted[vbid] if at == 0 else branches[at - 1][1]

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if not self.node.is_up or self.incarnation != self.node.incarnation:
            raise ConnectionLost("the connection was cut")


def some_changes(count: int) -> list[Change]:
    return [
        Change(b"key-%d" % (number % 97), None if number % 11 == 0 else b"value-%d" % number) for number in range(count)
    ]


def expected(changes: Sequence[Change]) -> dict[bytes, bytes | None]:
    return {change.key: change.value for change in changes}


def played(loader: Loader) -> None:
    assert loader.wait_for(DONE, 20.0)
    loader.stop()
    loader.check()


def test_everything_is_written_and_persisted_at_the_end() -> None:
    node, changes = Node(), some_changes(3 * WINDOW + 7)
    loader = Loader(node.connect, changes)
    loader.start()
    played(loader)
    assert node.state() == expected(changes)
    assert loader.written == len(changes)
    assert loader.unpersisted == 0
    assert loader.written_again == 0


def test_what_a_killed_node_lost_is_written_again() -> None:
    node, changes = Node(), some_changes(2000)
    node.flushes = False
    loader = Loader(node.connect, changes, hold_at=[1000])
    loader.start()
    assert loader.wait_for(HOLDING, 20.0)
    node.persisted = {vbid: len(log) // 2 for vbid, log in node.logs.items()}
    survived = sum(node.persisted.values())
    node.kill()
    node.is_up = node.flushes = True
    loader.release()
    played(loader)
    assert node.state() == expected(changes)
    assert loader.written_again >= 1000 - survived
    assert loader.reconnects == 1


@pytest.mark.parametrize("seed", range(20))
def test_kills_at_any_moment_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    node, changes = Node(chance), some_changes(3 * WINDOW)
    node.flushes = chance.random() < 0.5
    cuts = chance.randint(1, 4)
    loader = Loader(node.connect, changes, hold_at=sorted(chance.sample(range(1, len(changes)), cuts)))
    loader.start()
    for _ in range(cuts):
        assert loader.wait_for(HOLDING, 20.0)
        if chance.random() < 0.5:
            node.flush()
        # The node dies some writes later: in the middle of a window, or while the last loss is being repaired.
        node.writes_left = chance.randint(0, WINDOW)
        loader.release()
    node.flushes = True
    played(loader)
    assert node.state() == expected(changes)


def test_a_node_that_stays_away_ends_the_loader() -> None:
    node = Node()
    node.flushes = False
    loader = Loader(node.connect, some_changes(2000), hold_at=[100], reconnect_timeout_s=0.3)
    loader.start()
    assert loader.wait_for(HOLDING, 20.0)
    node.kill()
    assert not loader.wait_for(frozenset({LoaderState.DONE}), 20.0) or loader.state is not LoaderState.DONE
    loader.stop()
    with pytest.raises(ConnectionLost):
        loader.check()


def test_a_refusal_for_good_is_raised_and_one_for_now_is_not() -> None:
    answers = [TemporaryFailure("busy", status=0x86), InvalidArguments("no", status=4)]

    class Refusing(Node):
        def connect(self) -> Connection:
            connection = super().connect()

            def refuse(changes: Sequence[Change]) -> Sequence[Token]:
                raise answers.pop(0)

            connection.write = refuse
            return connection

    loader = Loader(Refusing().connect, some_changes(10))
    loader.start()
    assert loader.wait_for(frozenset(), 20.0)
    loader.stop()
    with pytest.raises(InvalidArguments):
        loader.check()


def test_points_to_hold_at_can_be_given_up() -> None:
    node, changes = Node(), some_changes(2000)
    loader = Loader(node.connect, changes, hold_at=[10, 20, 30])
    loader.start()
    assert loader.wait_for(HOLDING, 20.0)
    loader.hold_no_more()
    loader.release()
    played(loader)
    assert node.state() == expected(changes)


def test_stop_ends_a_loader_that_holds() -> None:
    node = Node()
    loader = Loader(node.connect, some_changes(1000), hold_at=[10])
    loader.start()
    assert loader.wait_for(HOLDING, 20.0)
    loader.stop()
    loader.check()
    assert loader.written == 10
