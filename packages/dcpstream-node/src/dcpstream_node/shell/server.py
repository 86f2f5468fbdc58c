"""The KV port: listening sockets and their connections around an engine, on one asyncio loop.

After each turn of the loop the engine reports the turn's changes to the DCP connections.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from dcpstream.runtime import Clock
from dcpstream_node.engine import Engine, Session
from dcpstream_node.engine.limit_log import LimitLog, described
from dcpstream_node.faults import Faults, is_meant
from dcpstream_node.shell.acceptor import Acceptor
from dcpstream_node.shell.connection import CLOSE_TIMEOUT_S, READ_BYTES, KvProtocol
from dcpstream_node.shell.connection_limits import MemoryBudget, TimeLimits
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.tls import Tls

BACKLOG = 1024
POLL_S = 0.01
"""Pause between two looks at the connections that close."""
TURN_S = 0.002
"""Time that DCP connections send, plus one pull, before the loop looks for requests again. With many connections, it
takes several turns until each has sent."""
SHORT_TURN_S = 0.0005
"""The same while a client waits for a commit. Its request, the end of the commit and its answer each wait for a turn,
so the writer sees its length three times."""
PULL_BYTES = 1024 * 1024
"""DCP data requested from a session at a time. Smaller pulls are slower, because each send evicts most of the code and
the index from the CPU's cache."""
SHORT_TURN_PULL_BYTES = 256 * 1024
"""The same while clients wait for commits, whose turn comes after the pull: a pull takes up to a ms then, not four."""
SHORT_PULL_BYTES = 64 * 1024
"""The same while memory is short."""
SHORT_TURNS_S = 0.1
"""Turns stay short this long after a client began to wait, because one that writes durably will do so again."""


class KvServer:
    """The listening sockets and their connections.

    Args:
        clock: its monotonic clock must be the loop's.
        limits: the limits of clients.
        tls: encryption of the encrypted port, and logins by certificate.

    Attributes:
        protocols: the connections, by session.
        read_view: the buffer that all connections read into.
        memory: the memory budget of all connections.
        faults: what goes wrong on demand.
        pull_bytes: DCP data requested from a session at a time.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        limits: Limits | None = None,
        tls: Tls | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.engine = engine
        self.faults = faults or Faults()
        self.clock = clock
        engine.stopwatch = clock.monotonic
        self.limits = limits or Limits()
        engine.max_connections = self.limits.connections
        engine.is_stepwise = True
        engine.faults = self.faults
        self.loop = asyncio.get_running_loop()
        self.protocols: dict[Session, KvProtocol] = {}
        self._streaming: dict[Session, None] = {}
        self.read_view = memoryview(bytearray(READ_BYTES))
        self.log = engine.log
        self.memory = MemoryBudget(engine, self.limits, clock)
        self._tls = tls
        self._times = TimeLimits(self.limits, self.log, clock, self.schedule_turn)
        self._by_user: Counter[str] = Counter()
        self._encrypted: set[KvProtocol] = set()
        self._strangers: dict[KvProtocol, None] = {}
        self._postponed: deque[KvProtocol] = deque()
        self._open: set[KvProtocol] = set()
        self._acceptors: list[Acceptor] = []
        self._has_turn = False
        self._short_until = 0.0
        self.pull_bytes = PULL_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket, tls_listener: socket.socket | None = None) -> None:
        """Accept connections on bound sockets, which `stop` closes."""
        self._acceptors.append(Acceptor(listener, lambda: KvProtocol(self), self.limits, self.log))
        if tls_listener is not None and self._tls is not None:
            context, established = self._tls.context, lambda: len(self._encrypted)
            self._acceptors.append(
                Acceptor(tls_listener, lambda: KvProtocol(self), self.limits, self.log, context, established)
            )
        for acceptor in self._acceptors:
            acceptor.start(BACKLOG)
        self._sweeper = self.loop.call_later(self.limits.sweep_s, self._sweep)

    async def stop(self) -> None:
        """Close the listening sockets and every connection; no socket is open when it returns."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for acceptor in self._acceptors:
            await acceptor.stop()
        for protocol in list(self._open):
            protocol.close()
        await self._wait_for_loss()
        for protocol in list(self._open):  # its client had gone, or took no more output
            protocol.abort()
        await self._wait_for_loss()
        self.log.close()

    async def _wait_for_loss(self) -> None:
        """Wait until every connection is lost, at most `CLOSE_TIMEOUT_S`."""
        for _ in range(int(CLOSE_TIMEOUT_S / POLL_S)):
            if not self._open:
                break
            await asyncio.sleep(POLL_S)

    # -------------------------------------------------------------------------------------------------- connections

    def admit(self, protocol: KvProtocol, peer: str, local_host: str, encryption: ssl.SSLObject | None) -> bool:
        """Give a new connection its session; return whether it may stay.

        Args:
            local_host: the address at which the client reached the node.
            encryption: None for a connection without TLS.
        """
        now = self.loop.time()
        self._open.add(protocol)
        if len(self._strangers) >= self.limits.connections_before_login:
            self._drop_oldest_stranger(now)
        is_own_host = self.engine.trusts_own_host and peer.rpartition(":")[0] == local_host
        session = self.engine.new_session(peer, local_host, is_secure=is_own_host or encryption is not None)
        if session is None:
            self.log.reached("connections", peer, "refused", now)
            return False
        protocol.session = session
        self.protocols[session] = protocol
        self._strangers[protocol] = None
        if encryption is not None:
            self._encrypted.add(protocol)
        self._times.add(protocol)
        self.memory.add(protocol)
        if encryption is not None and self._tls is not None and not self._identify(session, encryption, self._tls):
            return False
        if session.identity.user is not None:
            self.count_user(protocol)
        return True

    def _identify(self, session: Session, encryption: ssl.SSLObject, tls: Tls) -> bool:
        """Log in the user of a client's certificate; return whether the connection may stay."""
        if tls.settings.client_auth == "none":
            return True
        name = tls.user_name(encryption.getpeercert())
        user = self.engine.users.find(name) if name is not None else None
        if user is not None:
            session.identity.is_certified = True
            session.logged_in(user)
        elif tls.settings.client_auth == "mandatory":
            text = f"{session.peer}: refused, its certificate names no user of this node ({name!r})"
            self.log.say("certificates of nobody", text, self.loop.time())
            return False
        return True

    def count_user(self, protocol: KvProtocol) -> None:
        """A connection's user changed."""
        session = protocol.session
        assert session is not None, "connected"
        if protocol.user is not None:
            self._uncount(protocol.user.name)
        protocol.user = user = session.identity.user
        if user is None:
            self._strangers[protocol] = None
            return
        self._strangers.pop(protocol, None)
        self._by_user[user.name] += 1
        if self._by_user[user.name] > self.limits.connections_per_user:
            what = f"closed, user {user.name} has too many connections"
            self.log.reached("connections_per_user", session.peer, what, self.loop.time())
            session.close(what)

    def _drop_oldest_stranger(self, now: float) -> None:
        """Close the oldest connection without a login, so that idle ones keep no new client out."""
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        self.engine.counters.connections_refused += 1
        if oldest.session is not None:
            what = "closed for a newer one, it has not logged in"
            self.log.reached("connections_before_login", oldest.session.peer, what, now)
            oldest.session.close(what)
        oldest.abort()

    def _uncount(self, name: str) -> None:
        self._by_user[name] -= 1
        if not self._by_user[name]:
            del self._by_user[name]

    def forget(self, protocol: KvProtocol) -> None:
        """A connection was lost."""
        self._open.discard(protocol)
        if protocol.session is not None:
            self.protocols.pop(protocol.session, None)
        if protocol.user is not None:
            self._uncount(protocol.user.name)
            protocol.user = None
        self._strangers.pop(protocol, None)
        self._encrypted.discard(protocol)
        self._times.forget(protocol)
        self.memory.forget(protocol)

    def drop(self, bucket: str, connection: str) -> int:
        """Close connections at once, without their waiting output; returns how many.

        Args:
            bucket, connection: as in `Fault`.
        """
        found = [
            protocol
            for session, protocol in self.protocols.items()
            if (not bucket or (session.bucket is not None and session.bucket.name == bucket))
            and is_meant(connection, session.names)
        ]
        for protocol in found:
            protocol.abort()
        return len(found)

    # --------------------------------------------------------------------------------------------------------- time

    def set_time(self) -> None:
        """Set the engine's time."""
        self.engine.set_time(self.clock.monotonic(), self.clock.time_ns())

    def schedule_turn(self) -> None:
        """Let the engine report changes to its DCP connections, once in this turn of the loop."""
        if not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._scheduled_turn)

    def end_input(self) -> None:
        """End the turn of the engine: now if nobody has to hear of the input, else in this turn of the loop.

        The second costs as much as a plain request, because the loop asks the system for events once more.
        """
        if self._has_turn:
            return
        if self.engine.is_quiet:
            self.engine.end_turn()
            self._schedule_timeout()
        else:
            self.schedule_turn()

    def _scheduled_turn(self) -> None:
        self._has_turn = False
        self.turn()

    @property
    def is_busy(self) -> bool:
        """Whether connections wait for their turn."""
        return bool(self._postponed)

    def postpone(self, protocol: KvProtocol) -> None:
        """Continue with a connection that used up its time slice after the others had their turn.

        All postponed connections together get the time of one turn before the loop looks for other requests.
        """
        if not self._postponed:
            self.loop.call_soon(self._go_on)
        self._postponed.append(protocol)

    def _go_on(self) -> None:
        until = self.loop.time() + TURN_S
        for _ in range(len(self._postponed)):
            protocol = self._postponed[0]
            protocol.go_on()
            self._postponed.popleft()
            if self.loop.time() >= until:
                break
        if self._postponed:
            self.loop.call_soon(self._go_on)

    def turn(self) -> None:
        """Report changes to DCP connections, and send: answers first, then streams for at most the time of a turn.

        A call outside of the schedule does not schedule a second turn, which would slow the loop down.
        """
        had_turn, self._has_turn = self._has_turn, True  # what comes up meanwhile is looked at here, at the end
        try:
            self._send()
        finally:
            self._has_turn = had_turn
        if self._streaming:
            self.schedule_turn()
            self._schedule_timeout()
        else:
            self.end_input()

    def _send(self) -> None:
        streaming = self._streaming
        for session in self.engine.end_turn():
            protocol = self.protocols.get(session)
            if protocol is None:
                continue
            if session.output.pieces or (session.dcp is None and session.pending.steps is None):
                protocol.send_or_drop()
            else:
                streaming[session] = None
        has_short_turns = self.has_short_turns
        until = self.loop.time() + (SHORT_TURN_S if has_short_turns else TURN_S)
        self.pull_bytes = SHORT_TURN_PULL_BYTES if has_short_turns else PULL_BYTES
        if self.memory.is_short:
            self.pull_bytes = SHORT_PULL_BYTES
        while streaming:
            session = next(iter(streaming))  # the one that waits longest
            del streaming[session]
            protocol = self.protocols.get(session)
            if protocol is not None:
                protocol.send_or_drop()
            if session in self.engine.ready and session.dcp is not None:
                # It has more data: sending it in this turn, behind the others, is cheaper than another turn.
                self.engine.ready.discard(session)
                streaming[session] = None
            if self.loop.time() >= until:
                break

    def shorten_turns(self) -> None:
        """A client waits for a commit: keep the turns short for a while."""
        self._short_until = self.loop.time() + SHORT_TURNS_S

    @property
    def has_short_turns(self) -> bool:
        """Whether clients wait for commits, or did a moment ago."""
        return self.loop.time() < self._short_until

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(self.limits.sweep_s, self._sweep)
        self.log.sweep(self.loop.time())
        self.memory.recount()
        self._times.sweep()

    def _schedule_timeout(self) -> None:
        at = self.engine.next_timeout()
        if self._timer is not None:
            if at == self._timer.when() and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self.loop.call_at(at, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self.set_time()
        self.engine.handle_timeout()
        self.schedule_turn()


def handler_of(log: LimitLog) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """The loop's handler of uncaught exceptions: it logs where they were raised."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = described(error) if isinstance(error, BaseException) else ""
        what = re.split("[(<]", str(context.get("message", "")))[0].strip()  # the rest quotes arguments
        text = f"an error that nobody caught: {what}: {where}"
        log.say("errors that nobody caught", text, loop.time(), level=logging.ERROR)

    return handle
