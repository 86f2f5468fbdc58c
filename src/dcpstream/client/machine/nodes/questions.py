"""Questions to nodes about vbuckets: each goes to the node that has the vbucket active, and again if that moves.

Sans-IO, over `Nodes`, like `reader`: the shell moves the bytes until `is_done` or until its patience ends. What is
not answered by then stays unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Answer, Stream, StreamOpened, StreamRefused
from dcpstream.client.machine.nodes.nodes import Nodes, pause_s
from dcpstream.client.machine.reader.side_requests import RETRY
from dcpstream.client.machine.resume import BranchState, observed
from dcpstream.client.machine.values import Accepted, RollbackTo
from dcpstream.errors import DcpstreamError, RemoteProtocolError
from dcpstream.model import FailoverLog, NodeAddress, StreamOffset
from dcpstream.runtime import Random
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.status import status_error
from dcpstream.wire.values import decode_failover_log, decode_vbucket_seqnos


@dataclass(slots=True, eq=False)
class Question:
    """One question.

    Attributes:
        opcode: what to ask; DCP_STREAM_REQ for a check of `position`.
        vbid: the vbucket it is about, which decides the node; None to ask `node`, or any node if that is None too.
        extras: of the request.
        answer: the answer, once it is there; an error status other than "try again" is an answer.
        ignore_purged: of a position check: leave purged deletions out of account.
        result: of a position check.
    """

    opcode: Opcode
    vbid: int | None = None
    node: NodeAddress | None = None
    extras: bytes = b""
    position: StreamOffset | None = None
    ignore_purged: bool = False
    answer: Frame | None = None
    result: Accepted | RollbackTo | None = None
    due: float = 0.0
    failures: int = 0
    sent_on: NodeConnection | None = None
    opaque: int = 0
    stream: Stream | None = None

    @property
    def is_answered(self) -> bool:
        """Whether nothing more is to be done."""
        return self.answer is not None or self.result is not None


class Questions:
    """Some questions that are asked together."""

    def __init__(self, questions: Iterable[Question], nodes: Nodes, random: Random) -> None:
        self._open = list(questions)
        self._nodes = nodes
        self._random = random
        self._by_opaque: dict[tuple[NodeConnection, int], Question] = {}
        self._unsent = list(self._open)
        self._error: DcpstreamError | None = None

    @property
    def is_done(self) -> bool:
        """Whether everything was answered."""
        return not self._unsent and not self._by_opaque

    def check(self) -> None:
        """Raise what made it impossible to go on, if anything."""
        if self._error is not None:
            raise self._error

    def step(self, now: float) -> None:
        """Send what can be sent."""
        found = self._nodes.find_map(now)
        if found is None or not self._unsent:
            return
        self._unsent = [question for question in self._unsent if question.due > now or not self._send(question, now)]

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into a connection's buffer."""
        try:
            self._nodes.received(connection, now)
            for event in self._nodes.events(connection, now):
                if isinstance(event, Answer):
                    self._answered(connection, event.opaque, event.frame, now)
                elif isinstance(event, StreamOpened):
                    self._checked(connection, event.stream, Accepted(event.log))
                elif isinstance(event, StreamRefused):
                    if event.rollback_seqno is not None:
                        self._checked(connection, event.stream, RollbackTo(event.rollback_seqno))
                    else:
                        frame = Frame(0x81, Opcode.DCP_STREAM_REQ, vbid=event.status, value=event.value)
                        self._answered(connection, event.stream.opaque, frame, now)
        except DcpstreamError as error:
            self._error = self._error or error
        self._recover(now)

    def lost(self, connection: NodeConnection, error: BaseException, now: float) -> None:
        """A connection failed, or could not be made."""
        try:
            self._nodes.lost(connection, error, now)
        except DcpstreamError as final:
            self._error = self._error or final
        self._recover(now)

    def next_timeout(self) -> float:
        """When `step` and `handle_timeout` should be called at the latest."""
        due = min((question.due for question in self._unsent if question.due), default=float("inf"))
        return min(due, self._nodes.next_timeout())

    def handle_timeout(self, now: float) -> None:
        """Check the clocks."""
        try:
            self._nodes.handle_timeout(now)
        except DcpstreamError as error:
            self._error = self._error or error
        self._recover(now)
        self._error = self._error or self._nodes.verdict(self._needed())

    def _needed(self) -> set[str] | None:
        """The nodes that the questions are for; None while there is no map."""
        found = self._nodes.map
        if found is None:
            return None
        wanted = (
            question.node
            if question.vbid is None
            else found.active_node(question.vbid)
            if question.vbid < found.vbucket_count
            else None
            for question in self._unsent
        )
        return {str(node) for node in wanted if node is not None}

    def _send(self, question: Question, now: float) -> bool:
        found = self._nodes.map
        assert found is not None
        address = question.node
        connection = None
        if question.vbid is not None:
            address = found.active_node(question.vbid) if question.vbid < found.vbucket_count else None
            if address is None:
                self._nodes.find_map(now, refresh=True)
                self._postpone(question, now)
                return False
        if address is not None:
            connection = self._nodes.ready(address, now)
            if connection is None and self._nodes.any_ready() is not None:
                self._nodes.find_map(now, refresh=True)
        else:
            connection = self._nodes.any_ready()
        if connection is None or connection.session is None:
            question.due = now + 0.02
            return False
        session = connection.session
        question.sent_on = connection
        if question.position is not None and question.vbid is not None:
            position = question.position
            question.stream = session.open_stream(
                question.vbid, position, position.seqno, now, ignore_purged=question.ignore_purged
            )
            question.opaque = question.stream.opaque
        else:
            question.opaque = session.request(question.opcode, now, vbid=question.vbid or 0, extras=question.extras)
        self._by_opaque[connection, question.opaque] = question
        return True

    def _postpone(self, question: Question, now: float) -> None:
        question.failures += 1
        question.due = now + pause_s(question.failures, self._random)

    def _answered(self, connection: NodeConnection, opaque: int, frame: Frame, now: float) -> None:
        question = self._by_opaque.pop((connection, opaque), None)
        if question is None:
            return
        if frame.status in RETRY:
            if frame.status == Status.NOT_MY_VBUCKET:
                self._nodes.update_map(frame.value, connection.address)
                self._nodes.find_map(now, refresh=True)
            self._postpone(question, now)
            self._unsent.append(question)
        elif frame.status != Status.SUCCESS:
            raise status_error(
                frame.status, opcode=question.opcode, vbid=question.vbid, context=str(connection.address)
            )
        else:
            self._nodes.worked(connection)
            question.answer = frame

    def _checked(self, connection: NodeConnection, stream: Stream, result: Accepted | RollbackTo) -> None:
        question = self._by_opaque.pop((connection, stream.opaque), None)
        if question is not None:
            question.result = result

    def _recover(self, now: float) -> None:
        """Ask again what was asked on connections that are gone."""
        living = self._nodes.connections
        for key, question in list(self._by_opaque.items()):
            if key[0] not in living:
                del self._by_opaque[key]
                self._postpone(question, now)
                self._unsent.append(question)


def logs_of(questions: Iterable[Question]) -> dict[int, FailoverLog]:
    """Vbucket → failover log, of questions for it that were answered."""
    return {
        question.vbid: decode_failover_log(question.answer.value)
        for question in questions
        if question.answer is not None and question.vbid is not None
    }


def high_seqnos_of(questions: Iterable[Question], vbucket_count: int) -> dict[int, int]:
    """Vbucket → high seqno, of questions to nodes that were answered.

    Raises:
        RemoteProtocolError: a node names a vbucket that the bucket does not have.
    """
    result: dict[int, int] = {}
    for question in questions:
        if question.answer is not None:
            result.update(decode_vbucket_seqnos(question.answer.value))
    beyond = max(result, default=0)
    if beyond >= vbucket_count:
        raise RemoteProtocolError(f"a node tells the high seqno of vbucket {beyond}; the bucket has {vbucket_count}")
    return result


def states_of(
    before: Mapping[int, FailoverLog], high_seqnos: Mapping[int, int], after: Mapping[int, FailoverLog]
) -> dict[int, BranchState]:
    """The vbuckets for which three answers make one observation."""
    result = {}
    for vbid in before.keys() & high_seqnos.keys() & after.keys():
        state = observed(before[vbid], high_seqnos[vbid], after[vbid])
        if state is not None:
            result[vbid] = state
    return result
