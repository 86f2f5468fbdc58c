"""Questions to nodes about vbuckets: each goes to the node that has the vbucket active, and again if that moves.

Sans-IO, over `Nodes`, like `reader`: the shell moves bytes and waits, until `proceed` says that the questions are
answered or that the time is over. What is not answered by then stays unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import (
    Answer,
    Purged,
    Stream,
    StreamBroken,
    StreamOpened,
    StreamRefused,
)
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.retry import ELSEWHERE_STATUSES, LOOK_AGAIN_S, RETRY_STATUSES, pause_s
from dcpstream.client.machine.resume import BranchState, observed
from dcpstream.client.machine.values import Accepted, RollbackTo
from dcpstream.errors import ConnectTimeout, DcpstreamError, FieldError, RemoteProtocolError
from dcpstream.model import FailoverLog, NodeAddress, StreamOffset, VbucketMap, VbucketState
from dcpstream.runtime import Random
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.layout import Request
from dcpstream.wire.messages.dcp import GetFailoverLog
from dcpstream.wire.messages.kv import GetAllVbSeqnos, Noop, ObserveSeqnoResponse
from dcpstream.wire.status import status_error
from dcpstream.wire.values import decode_failover_log, decode_vbucket_seqnos

ACTIVE_SEQNOS = GetAllVbSeqnos(state=VbucketState.ACTIVE, collection_id=None)
"""The request for the high seqnos of a node's active vbuckets: those of a replica say nothing."""


def branch_seqnos(frame: Frame, vbuuid: int) -> tuple[int, int] | None:
    """(persisted, high seqno) of a branch in an answer to OBSERVE_SEQNO; None if it is not the newest there."""
    try:
        answer = ObserveSeqnoResponse.decode(frame)
    except FieldError:
        return None
    return (answer.persisted_seqno, answer.current_seqno) if answer.vbuuid == vbuuid else None


@dataclass(slots=True, eq=False)
class Question:
    """One question: a request, or the check of a position by a stream request of length zero.

    Attributes:
        request: the message to send; None to check `position`.
        vbid: the vbucket of the question, which decides the node; None to ask `node`, or any node if that is None too.
        position: of a check.
        ignore_purged: of a check: ignore purged deletions.
        answer: the value of the answer to the request, once it is there.
        result: of a check.
    """

    request: Request | None = None
    vbid: int | None = None
    node: NodeAddress | None = None
    position: StreamOffset | None = None
    ignore_purged: bool = False
    answer: bytes | None = None
    result: Accepted | RollbackTo | None = None
    due: float = 0.0
    failures: int = 0
    opaque: int = 0

    @property
    def opcode(self) -> int:
        """The opcode of its request, for errors."""
        return Opcode.DCP_STREAM_REQ if self.request is None else self.request.layout.opcode


class Questions:
    """Some questions that are asked together.

    Args:
        questions: what to ask.
        nodes: the connections.
        random: for pauses.
        deadline: seconds of the monotonic clock at which waiting ends.
        absence_s: seconds after which questions to nodes without a connection stay unanswered, once the others are
            answered. None = until the deadline.
    """

    def __init__(
        self,
        questions: Iterable[Question],
        nodes: Nodes,
        random: Random,
        deadline: float,
        absence_s: float | None = None,
    ) -> None:
        self._nodes = nodes
        self._random = random
        self._deadline = deadline
        self._absence_s = absence_s
        self._only_absent_since: float | None = None
        self._by_opaque: dict[tuple[NodeConnection, int], Question] = {}
        self._unsent = list(questions)
        self._error: DcpstreamError | None = None

    def proceed(self, now: float) -> float | None:
        """Send what can be sent.

        Returns: seconds to wait at most; None if everything was answered, or the time is over.

        Raises:
            DcpstreamError: the questions cannot be answered.
        """
        if self._error is None and self._nodes.find_map(now) is not None:
            self._unsent = [item for item in self._unsent if item.due > now or not self._send(item, now)]
        if self._error is not None:
            self._nodes.releases.explain(self._error)
            raise self._error
        deadline = min(self._deadline, self._absence_deadline(now))
        is_done = not self._unsent and not self._by_opaque
        return None if is_done or now >= deadline else deadline - now

    def gather_s(self, now: float) -> float:
        """No time: answers are read at once."""
        return 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every question was answered."""
        return not self._unsent and not self._by_opaque

    def _absence_deadline(self, now: float) -> float:
        """When to stop waiting for nodes without a connection, if all that is left waits for such nodes."""
        found = self._nodes.map
        others = self._nodes.any_ready()
        if self._absence_s is None or found is None or others is None or self._by_opaque:
            self._only_absent_since = None
            return float("inf")
        if not all(self._is_for_absent(question, found, now) for question in self._unsent):
            self._only_absent_since = None
            return float("inf")
        if self._only_absent_since is None:
            self._only_absent_since = now
        return self._only_absent_since + self._absence_s

    def _is_for_absent(self, question: Question, found: VbucketMap, now: float) -> bool:
        node = self._node_of(question, found)
        if node is None:
            return question.vbid is not None  # the vbucket has no active node
        return self._nodes.ready(node, now) is None

    def no_answer(self, what: str) -> ConnectTimeout:
        """The error for something that no node answered in time."""
        return ConnectTimeout(
            f"no node gave {what} within {self._nodes.options.connect_timeout_s:g} s. Tried {self._nodes.tried()}. "
            "Is the node running, and is this its data port?"
        )

    def received(self, connection: NodeConnection, now: float) -> None:
        """Bytes were read into a connection's buffer."""
        try:
            self._nodes.received(connection, now)
            for event in self._nodes.events(connection, now):
                if isinstance(event, Answer):
                    self._answered(connection, event.opaque, event.frame.status, event.frame.value, now)
                elif isinstance(event, StreamOpened):
                    self._checked(connection, event.stream, Accepted(event.log))
                elif isinstance(event, StreamRefused):
                    self._refused(connection, event, now)
                elif isinstance(event, StreamBroken):
                    # A position is checked by a stream of its own, which is not worth a second try on the connection.
                    self._nodes.lost(connection, event.error, now)
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
        """The latest time to call `proceed` and `handle_timeout`."""
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
        """The nodes of the questions; None while there is no map."""
        found = self._nodes.map
        if found is None:
            return None
        wanted = (self._node_of(question, found) for question in self._unsent)
        return {str(node) for node in wanted if node is not None}

    @staticmethod
    def _node_of(question: Question, found: VbucketMap) -> NodeAddress | None:
        if question.vbid is None:
            return question.node
        return found.active_node(question.vbid) if question.vbid < found.vbucket_count else None

    def _send(self, question: Question, now: float) -> bool:
        """Send a question if its node is ready; whether it was sent."""
        found = self._nodes.map
        assert found is not None
        address = self._node_of(question, found)
        if address is not None:
            connection = self._nodes.ready(address, now)
            if connection is None and self._nodes.any_ready() is not None:
                self._nodes.find_map(now, refresh=True)
        elif question.vbid is not None:
            self._nodes.find_map(now, refresh=True)
            self._postpone(question, now)
            return False
        else:
            connection = self._nodes.any_ready()
            if connection is None:
                self._nodes.find_map(now, refresh=True)
        if connection is None or connection.session is None:
            question.due = now + LOOK_AGAIN_S
            return False
        session = connection.session
        if question.request is not None:
            question.opaque = session.request(question.request, now)
        else:
            assert question.vbid is not None
            assert question.position is not None
            end_seqno = question.position.seqno
            purged = Purged.IGNORE if question.ignore_purged else Purged.REFUSE
            stream = session.open_stream(question.vbid, question.position, end_seqno, now, purged=purged)
            question.opaque = stream.opaque
        self._by_opaque[connection, question.opaque] = question
        return True

    def _postpone(self, question: Question, now: float) -> None:
        question.failures += 1
        question.due = now + pause_s(question.failures, self._random)

    def _answered(self, connection: NodeConnection, opaque: int, status: int, value: bytes, now: float) -> None:
        question = self._by_opaque.pop((connection, opaque), None)
        if question is None:
            return
        if status in RETRY_STATUSES:
            if status in ELSEWHERE_STATUSES:
                self._nodes.update_map(value, connection.address)
                self._nodes.find_map(now, refresh=True)
            self._postpone(question, now)
            self._unsent.append(question)
        elif status != Status.SUCCESS:
            raise status_error(status, opcode=question.opcode, vbid=question.vbid, context=str(connection.address))
        else:
            self._nodes.worked(connection)
            question.answer = value

    def _refused(self, connection: NodeConnection, event: StreamRefused, now: float) -> None:
        if event.rollback_seqno is not None:
            self._checked(connection, event.stream, RollbackTo(event.rollback_seqno))
        else:
            self._answered(connection, event.stream.opaque, event.status, event.value, now)

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


def map_question() -> Question:
    """A question that any node answers: with its answer, the map is known."""
    return Question(Noop())


def log_questions(vbids: Iterable[int]) -> list[Question]:
    """Questions for the failover logs of vbuckets; see `logs_of`."""
    return [Question(GetFailoverLog(vbid=vbid), vbid) for vbid in vbids]


def logs_of(questions: Iterable[Question]) -> dict[int, FailoverLog]:
    """Vbucket → failover log, from the answers to `log_questions`."""
    return {
        question.vbid: decode_failover_log(question.answer)
        for question in questions
        if question.answer is not None and question.vbid is not None
    }


def high_seqno_questions(found: VbucketMap) -> list[Question]:
    """Questions for the high seqnos of all vbuckets; see `high_seqnos_of`."""
    return [Question(ACTIVE_SEQNOS, node=node) for node in found.vbuckets_by_node()]


def high_seqnos_of(questions: Iterable[Question], vbucket_count: int) -> dict[int, int]:
    """Vbucket → high seqno, from the answers to `high_seqno_questions`.

    Raises:
        RemoteProtocolError: a node names a vbucket that the bucket does not have.
    """
    result: dict[int, int] = {}
    for question in questions:
        if question.answer is not None:
            result.update(decode_vbucket_seqnos(question.answer))
    beyond = max(result, default=0)
    if beyond >= vbucket_count:
        raise RemoteProtocolError(f"a node reports the high seqno of vbucket {beyond}; the bucket has {vbucket_count}")
    return result


OBSERVATION_PASSES = 2
"""Times that a vbucket is observed whose branch changed since the last observation, or in the middle of this one."""


class Observer:
    """Observes branches: log, high seqno, log again, each by rounds of questions.

    A branch that is left never becomes the newest again, so if a log has the same newest branch twice, it was the
    newest all the time between. The log of the last observation therefore serves as the first one of the next.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[bytes, FailoverLog]] = {}

    def rounds(
        self,
        vbids: Iterable[int],
        found: VbucketMap,
        states: dict[int, BranchState],
        high_seqnos: Mapping[int, int] | None = None,
    ) -> Iterator[list[Question]]:
        """The rounds of questions of one observation.

        Args:
            vbids: the vbuckets.
            found: the cluster map.
            states: gets the observations after the last round. A vbucket that was not answered, or whose branch changed
                meanwhile, is left out.
            high_seqnos: asked since the last observation; None to ask. They spare a round where the logs of that
                observation serve as the first ones.
        """
        vbids = list(vbids)
        before = log_questions(vbid for vbid in vbids if vbid not in self._last)
        if before:
            yield before
            self._logs(before)
            high_seqnos = None
        left = [vbid for vbid in vbids if vbid in self._last]
        for _ in range(OBSERVATION_PASSES):
            if not left:
                return
            known = {vbid: self._last[vbid][1] for vbid in left}
            if high_seqnos is None:
                highs = high_seqno_questions(found)
                yield highs
                high_seqnos = high_seqnos_of(highs, found.vbucket_count)
            after = log_questions(left)
            yield after
            left = []
            for vbid, log in self._logs(after).items():
                state = observed(known[vbid], high_seqnos[vbid], log) if vbid in high_seqnos else None
                if state is not None:
                    states[vbid] = state
                elif vbid in high_seqnos:
                    left.append(vbid)
            high_seqnos = None

    def _logs(self, questions: Iterable[Question]) -> dict[int, FailoverLog]:
        """Vbucket → log, from answers; equal answers are decoded once."""
        logs: dict[int, FailoverLog] = {}
        for question in questions:
            if question.answer is None or question.vbid is None:
                continue
            last = self._last.get(question.vbid)
            if last is None or last[0] != question.answer:
                last = self._last[question.vbid] = (question.answer, decode_failover_log(question.answer))
            logs[question.vbid] = last[1]
        return logs
