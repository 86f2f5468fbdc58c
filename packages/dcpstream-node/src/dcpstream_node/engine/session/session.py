"""One client connection, without the socket: bytes in, bytes out.

Theory of operation: `receive` walks over the whole frames of a piece of the byte stream and answers each at once, so
answers come in the order of the requests. It stops at a request that waits, at a limit of output, and when its time
slice is over; the `Step` that it returns says what the shell has to do. `send` makes the next part of long answers and
of DCP streams. The native kernel answers plain GETs and SETs where they lie, if it is there; all other
requests go through the command table, which refuses what is malformed or not allowed. DCP frames go to the DCP machine.

A session has at most one request that waits for something (`pending`): SEQNO_PERSISTENCE, a durable write, a pending
vbucket, the many packets of a range scan. Later requests stay unread until it is answered.

Source: kv_engine docs/BinaryProtocol.md, docs/sasl.md, daemon/connection.cc, daemon/cookie.cc (errors, XERROR).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.sasl import MECHANISMS, OAUTHBEARER, PLAIN, ServerLogin
from dcpstream.errors import CorruptLog, StoreError
from dcpstream.wire import (
    HEADER,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAME_BYTES_BEFORE_AUTH,
    MAX_FRAME_BYTES_BEFORE_AUTH_72,
    Datatype,
    Feature,
    Frame,
    FrameInfoId,
    Magic,
    Opcode,
    Status,
    decode_frame,
)
from dcpstream.wire.layout import Group, Response
from dcpstream.wire.messages import DCP_OPCODES, LAYOUTS, opcodes_of
from dcpstream.wire.messages.kv import CLUSTERMAP_CHANGE, ClustermapVersion
from dcpstream.wire.release import Rule
from dcpstream_node.engine.access.permission import Refusal, impersonated
from dcpstream_node.engine.commands import Command, CommandTable, fault
from dcpstream_node.engine.engine import MAX_OUTPUT_BYTES, RawConfig
from dcpstream_node.engine.limit_log import LOG_LINES_WITH_REASONS
from dcpstream_node.engine.session.identity import Identity
from dcpstream_node.engine.session.output import Output
from dcpstream_node.engine.session.pending import PendingRequest
from dcpstream_node.engine.session.responses import (
    CLOSES_WITHOUT_XERROR,
    WITHOUT_XERROR,
    pack_duration,
    reason_json,
)
from dcpstream_node.engine.session.step import Step, Wants

if TYPE_CHECKING:
    from dcpstream_node.engine.access.users import User
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.engine import Engine, RequestFaults

logger = logging.getLogger(__name__)

# Looked up once: the members of an enumeration are slow to reach in Python 3.11, and every read needs some.
_INPUT = Wants.INPUT
_ROOM = Wants.ROOM
_TURN = Wants.TURN
_EVENT = Wants.EVENT
_CLOSE = Wants.CLOSE

_new_tuple = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""

STREAM_OUTPUT_BYTES = 256 * 1024
"""Limit of waiting output up to which a long answer is continued, so that other connections are served in between."""

SLICE_S = 0.002
"""Time after which a session that answers requests one by one yields to other connections: a thousand stream requests
take fifty times as long."""

_OF_LOGIN = opcodes_of(Group.LOGIN)
"""The requests that are carried out after the token of a login has expired."""

_OF_ENGINE = opcodes_of(Group.OF_ENGINE)
_OF_ENGINE_80 = opcodes_of(Group.OF_ENGINE) | opcodes_of(Group.OF_ENGINE_80)
"""The requests that are NOT_SUPPORTED without a bucket, until 7.6 and in 8.0."""

_NOT_PLAIN = tuple(name for name in MECHANISMS if name != PLAIN)
NONCE_BITS = 144

NO_CONFIG = (-(1 << 63), 0)
"""A version below every one of a cluster configuration, whose epoch may be -1."""

_MAP_ONLY = opcodes_of(Group.MAP_ONLY)
"""Requests that are answered about a bucket that has nothing but its map."""


REFERENCE_BITS = 128
"""References to log lines look like UUIDs, as the server's do."""

TOGETHER_MAX = 256
"""Frames whose changes of vbuckets become durable together: each takes 0.2 ms, and a sync of its own takes several."""

_REQUESTS = frozenset((int(Magic.REQUEST), int(Magic.FLEX_REQUEST)))
_TOGETHER = frozenset(
    bytes((layout.magic, layout.opcode)) for layout in LAYOUTS if layout.groups & Group.VBUCKET_METADATA
)
"""First two bytes of frames that come one for each vbucket, and change its metadata: its role, its failover log."""
_RESPONSES = frozenset((int(Magic.RESPONSE), int(Magic.FLEX_RESPONSE), int(Magic.SERVER_RESPONSE)))
_WORDS = {
    "UNLOCK": "UNLOCK_KEY",
    "DELETE_WITH_META": "DEL_WITH_META",
    "DELETEQ_WITH_META": "DELQ_WITH_META",
    "SET_COLLECTIONS": "COLLECTIONS_SET_MANIFEST",
    "UPDATE_EXTERNAL_USER_PERMISSIONS": "UPDATE_USER_PERMISSIONS",
}
_SERVER_NAMES = {int(opcode): _WORDS.get(opcode.name, opcode.name) for opcode in Opcode}
"""The names of commands in the errors of a server."""
_MAGICS = frozenset(int(magic) for magic in Magic)
_FLEXIBLE = frozenset((int(Magic.FLEX_REQUEST), int(Magic.FLEX_RESPONSE)))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The functions that answer the requests of a session.

    Attributes:
        commands: by opcode, all but those of DCP.
        plain_opcodes: those that `plain` may answer for a session in its present state.
        plain: answers the plain requests from a place in some input on; returns where the first other one begins. None
            without the native kernel.
        dcp: answers a frame with a DCP opcode; the last argument is the time, monotonic seconds.
    """

    commands: CommandTable
    plain_opcodes: Callable[[Session], frozenset[int]]
    plain: Callable[[Session, bytes, int], int] | None
    dcp: Callable[[Session, Frame, float], None]


_OF_WHOLE_BUCKET = opcodes_of(Group.WHOLE_BUCKET)
"""Requests that look at all vbuckets, whichever their header names."""


class Session:
    """A connection's state, and the verbs with which handlers answer.

    Args:
        dispatch: the functions that answer requests.
        peer: address of the other end, for logs.
        local_host: the address at which the client reached the node.
        is_secure: whether nobody on the way can read the connection.

    Attributes:
        dispatch: as given.
        identity: the user and their rights.
        login: the SASL exchange.
        bucket: the selected bucket, or None.
        features: HELLO features that were granted.
        datatypes: bits of the datatype that were negotiated.
        has_collections, has_tokens, is_tracing: HELLO features: keys with collection ids, mutation tokens in answers,
            and the duration of the request in answers.
        dcp: the DCP machine, or None before DCP_OPEN.
        output: answers on their way out.
        pending: the request that waits.
        close_reason: set when the connection is to be closed; output that waits is still sent.
        ops: the requests of the session are counted here, by opcode: with the bucket, or with the node.
        frame_infos, payload, parsed: of the request that is being answered: its framing extras, its value without
            compression, and the result of its command's check.
        began: when the request that is being answered came, seconds of the engine's stopwatch.
        config_only: name of the selected bucket if the node has nothing of it but its map; else empty.
        config_sent: version of the cluster configuration that the client was sent last, of its present bucket.
        config_known: the highest version of it that the client was sent, was notified of, or named itself.
        plain_opcodes: opcodes of requests that need no check of privileges and settings if they are plain.
    """

    def __init__(
        self,
        engine: Engine,
        dispatch: Dispatch,
        peer: str,
        local_host: str = "127.0.0.1",
        *,
        is_secure: bool = False,
    ) -> None:
        self.engine = engine
        self.peer = peer
        self.local_host = local_host
        self.agent = ""
        self.identity = Identity()
        self.login = ServerLogin(
            engine.users.credentials,
            lambda: engine.random.getrandbits(NONCE_BITS).to_bytes(NONCE_BITS // 8, "big"),
            engine.users.decoy,
            (
                *(MECHANISMS if is_secure or not engine.plain_needs_tls else _NOT_PLAIN),
                *((OAUTHBEARER,) if is_secure and engine.issuers else ()),
            ),
            lambda username, token: engine.check_token(username, token, peer),
        )
        self.bucket: Bucket | None = None
        self.features: frozenset[int] = frozenset()
        self.datatypes = 0
        self.has_collections = False
        self.has_tokens = False
        self.is_tracing = False
        self.dcp: ProducerConnection | ConsumerConnection | None = None
        self.output = Output()
        self.pending = PendingRequest()
        self.close_reason: str | None = None
        self._needed = HEADER_BYTES
        self.ops = engine.counters.ops
        self.frame_infos: dict[int, bytes] = {}
        self.payload = b""
        self.parsed: object = None
        self.began = 0.0
        self.config_only = ""
        self.config_sent = self.config_known = NO_CONFIG
        self.plain_opcodes: frozenset[int] = frozenset()
        self.dispatch = dispatch
        self._max_frame_bytes = self._max_bytes_before_login()

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def selected(self) -> Bucket:
        """The selected bucket, for requests that are answered only if there is one."""
        assert self.bucket is not None, "the command needs a bucket"
        return self.bucket

    @property
    def is_closing(self) -> bool:
        """Whether the connection is to be closed."""
        return self.close_reason is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits, so that later ones stay unread."""
        return self.pending.frame is not None

    @property
    def is_degraded(self) -> bool:
        """Whether the selected bucket refuses requests for documents that are not there: it is still being loaded."""
        return self.bucket is not None and not self.bucket.takes_traffic

    @property
    def is_json(self) -> bool:
        """Whether the JSON datatype was negotiated."""
        return bool(self.datatypes & Datatype.JSON)

    @property
    def names(self) -> str:
        """The connection's DCP name, and the name of its client; a fault may be about one of them."""
        return self.agent if self.dcp is None else f"{self.dcp.name} {self.agent}"

    @property
    def user_name(self) -> str | None:
        """Name of the user that is logged in."""
        return None if self.identity.user is None else self.identity.user.name

    def refusal_in(self, privilege: str, collection_id: int) -> Refusal | None:
        """Why a privilege is refused in a collection of the selected bucket, or None."""
        return self.identity.refusal_in(privilege, self.selected, collection_id, has_collections=self.has_collections)

    # -------------------------------------------------------------------------------------------------- responses

    def respond(
        self,
        frame: Frame,
        status: int = Status.SUCCESS,
        *,
        cas: int = 0,
        datatype: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> None:
        """Answer a request."""
        framing, opcode, opaque = self._response_framing(), frame.opcode, frame.opaque
        magic = Magic.FLEX_RESPONSE if framing else Magic.RESPONSE
        answer = Frame(magic, opcode, datatype, status, opaque, cas, framing, extras, key, value)
        self.output.add(answer.encode())

    def reply(
        self,
        frame: Frame,
        response: type[Response],
        *fields: Any,
        status: int = Status.SUCCESS,
        cas: int = 0,
        datatype: int = 0,
        key: bytes = b"",
        value: bytes = b"",
    ) -> None:
        """Answer a request with a response of the message table, given its fields; see `Response.pack`."""
        self.output.add(
            response.pack(
                *fields,
                status=status,
                opaque=frame.opaque,
                cas=cas,
                datatype=datatype,
                framing=self._response_framing(),
                key=key,
                value=value,
            )
        )

    def _response_framing(self) -> bytes:
        """The framing extras of a response: how long the request took, if the client traces that."""
        return pack_duration(self.engine.stopwatch() - self.began) if self.is_tracing else b""

    def refuse(self, frame: Frame, status: int, context: str | None = None, **more: str) -> None:
        """Answer with an error and its reason in JSON.

        A client without XERROR gets an older status instead; if there is none, the connection is closed, as the server
        does it.
        """
        if Feature.XERROR not in self.features:
            if status in CLOSES_WITHOUT_XERROR:
                self.close(f"status 0x{status:02x} for a client without XERROR")
                return
            status = WITHOUT_XERROR.get(status, status)
        self._respond_json(frame, status, reason_json(context, **more))

    def refuse_with_reference(
        self, frame: Frame, status: int, why: str, context: str | None = None, *, may_close: bool = True
    ) -> None:
        """Answer with an error and a reference; the log has the reason under the same reference.

        Args:
            why: for the log.
            context: reason for the client, if it may know one.
            may_close: whether a client that does not know the status is disconnected instead.
        """
        if may_close and status in CLOSES_WITHOUT_XERROR and Feature.XERROR not in self.features:
            self.close(f"{why}; a client without XERROR does not know this status")
            return
        digits = f"{self.engine.random.getrandbits(REFERENCE_BITS):032x}"
        reference = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        text = f"{self.peer}: {why} (reference {reference})"
        self.engine.log.say("refusals with a reference", text, self.engine.now, lines=LOG_LINES_WITH_REASONS)
        self._respond_json(frame, status, reason_json(context, reference))

    def _respond_json(self, frame: Frame, status: int, value: bytes) -> None:
        self.respond(frame, status, datatype=Datatype.JSON if value and self.is_json else 0, value=value)

    def _max_bytes_before_login(self) -> int:
        is_long = self.engine.release.has(Rule.LONG_FRAMES_BEFORE_LOGIN)
        return MAX_FRAME_BYTES_BEFORE_AUTH if is_long else MAX_FRAME_BYTES_BEFORE_AUTH_72

    def refuse_access(self, frame: Frame, refusal: Refusal, *, may_close: bool = True) -> None:
        """Refuse a request that the user may not make, or that is about a collection that the user must not know of.

        Args:
            may_close: see `refuse_with_reference`.
        """
        if refusal.status == Status.UNKNOWN_COLLECTION:
            self.refuse_unknown(frame, refusal.status, is_hidden=refusal.is_hidden)
        elif refusal.privilege:
            name = _SERVER_NAMES.get(frame.opcode, f"0x{frame.opcode:02x}")
            why = f"Authorization failure: can't execute {name} operation without the {refusal.privilege} privilege"
            self.refuse_with_reference(frame, refusal.status, why, why, may_close=may_close)
        elif refusal.context:
            self.refuse(frame, refusal.status, refusal.context)
        else:
            self.refuse(frame, refusal.status)

    def refuse_vbucket(self, frame: Frame) -> None:
        """Answer NOT_MY_VBUCKET with the cluster map; clients that asked for that get each version once."""
        config = self.config_to_send()
        is_json = self.is_json or not self.engine.release.has(Rule.MAP_DATATYPE_IS_NEGOTIATED)
        self.respond(frame, Status.NOT_MY_VBUCKET, datatype=Datatype.JSON if config and is_json else 0, value=config)

    def refuse_unknown(self, frame: Frame, status: int, *, is_hidden: bool = False) -> None:
        """Answer UNKNOWN_COLLECTION or UNKNOWN_SCOPE with the version of the manifest that does not have it.

        Args:
            is_hidden: the user may not know of it, and gets the version 0.
        """
        if not (self.has_collections or Feature.XERROR in self.features):
            status = Status.EINVAL  # such a client does not know what a collection is
        uid = "0" if is_hidden else f"{self.selected.shown_manifest.uid:x}"
        self.refuse(frame, status, "Unknown scope or collection in operation", manifest_uid=uid)

    def _store_failed(self, frame: Frame, error: StoreError) -> None:
        """Answer a request whose document cannot be read, or whose change cannot be kept; nothing of it was done."""
        if not isinstance(error, CorruptLog):  # damage is logged by the store, once
            logger.error("%s: opcode 0x%02x of vbucket %d: %s", self.peer, frame.opcode, frame.vbid, error)
        if frame.magic in _RESPONSES:
            self.close("the store failed while an answer was taken")
        else:
            self.refuse(frame, Status.EINTERNAL, "The node cannot read or write its files; its log says which")

    def close(self, reason: str) -> None:
        """Close the connection once the output is sent."""
        if self.close_reason is None:
            self.close_reason = reason
            self.wake()
            text = f"{self.peer}: closing: {reason}"
            log, now = self.engine.log, self.engine.now
            log.say("closed connections", text, now, level=logging.INFO, lines=LOG_LINES_WITH_REASONS)

    def wake(self) -> None:
        """Mark the session as one that may have something to send."""
        self.engine.ready.add(self)

    # ----------------------------------------------------------------------------------------- login, bucket, HELLO

    def logged_in(self, user: User, expires_at: float | None = None) -> None:
        """Act for a user whose login succeeded.

        Args:
            expires_at: when the login ends, in seconds since 1970; None for never.
        """
        if expires_at is not None:
            expires_at = self.engine.now + max(0.0, expires_at - self.engine.unix_ns / 1e9)
        self.identity.log_in(user, expires_at)
        self._max_frame_bytes = MAX_FRAME_BYTES
        keeps = self.engine.release.has(Rule.LOGIN_KEEPS_BUCKET)
        if self.bucket is not None and not (keeps and user.may_use(self.bucket.name)):
            self.select(None)
        self.update_rights()

    def logged_out(self) -> None:
        """Forget the user, because a new login begins."""
        self.identity.log_in(None)
        self._max_frame_bytes = self._max_bytes_before_login()
        self.update_rights()

    def update_rights(self) -> None:
        """Look up the user's rights, and the plain requests that they allow: after a login, or a change of bucket."""
        self.identity.update(self.bucket)
        self.update_plain()

    def select(self, bucket: Bucket | None) -> None:
        """Use a bucket from now on, or none."""
        if self.bucket is not None:
            if bucket is not self.bucket and self.output.has_written and self.bucket.answers_when_durable:
                # Answers to writes in the old bucket wait for its commit.
                self.output.hold(self.bucket)
                self.bucket.hold(self)
            self.bucket.sessions.discard(self)
        if bucket is not self.bucket or self.config_only:
            self.config_sent = self.config_known = NO_CONFIG
        self.config_only = ""
        if bucket is not None:
            bucket.catch_up_all()  # the same read may hold requests for it, and is not searched again
        self.bucket = bucket
        self.ops = self.engine.counters.ops if bucket is None else bucket.ops
        if bucket is not None:
            bucket.sessions.add(self)
        self.update_rights()

    def select_config(self, name: str) -> None:
        """Use a bucket of which the node has nothing but the map."""
        self.select(None)
        self.config_only = name

    def negotiated(self, features: frozenset[int]) -> None:
        """HELLO: these features are on, all others off."""
        self.features = features
        # Plain integers: arithmetic with enum members costs more than all the rest of a GET.
        self.datatypes = int(
            (Datatype.JSON if Feature.JSON in features else 0)
            | (Datatype.SNAPPY if Feature.SNAPPY in features else 0)
            | (Datatype.XATTR if Feature.XATTR in features else 0)
        )
        self.has_collections = Feature.COLLECTIONS in features
        self.has_tokens = Feature.MUTATION_SEQNO in features
        self.is_tracing = Feature.TRACING in features

    def enable_json(self) -> None:
        """DCP_OPEN switches the JSON datatype on."""
        self.datatypes |= int(Datatype.JSON)

    def changed(self, vbucket: VBucket) -> None:
        """Note that a vbucket may have new items; DCP connections learn of it at the end of the turn."""
        self.selected.dirty.add(vbucket.vbid)
        self.output.has_written = True

    def update_plain(self) -> None:
        """Choose the plain requests that the session's user and bucket allow."""
        self.plain_opcodes = self.dispatch.plain_opcodes(self)

    # ------------------------------------------------------------------------------------------ cluster configuration

    def config_to_send(self) -> bytes:
        """The cluster configuration for a NOT_MY_VBUCKET answer; empty if there is none, or the client has it."""
        if not self.has_config:
            return b""
        version = self.config_version
        if Feature.DEDUPE_NOT_MY_VBUCKET in self.features and self.config_sent == version:
            return b""
        return self.config_json()

    @property
    def _raw_config(self) -> RawConfig | None:
        name = self.config_only if self.bucket is None else self.bucket.name
        return self.engine.raw_configs.get(name)

    @property
    def has_config(self) -> bool:
        """Whether there is a cluster configuration; a node without a manager may have been given none yet."""
        return self.engine.has_maps or self._raw_config is not None

    @property
    def config_version(self) -> tuple[int, int]:
        """(epoch, revision) of the cluster configuration of the selected bucket, or of the node."""
        raw = self._raw_config
        return self.engine.config_version(self.bucket) if raw is None else raw.version

    def config_json(self) -> bytes:
        """The cluster configuration for an answer or a notification."""
        self.config_sent = version = self.config_version
        self.config_known = max(self.config_known, version)
        raw = self._raw_config
        return self.engine.config_json(self.bucket, self.local_host) if raw is None else raw.text

    def push_config(self) -> None:
        """Send the cluster configuration, or its version alone, to a client that asked in HELLO for notifications.

        A version that the client was sent before is not sent again. A session without a bucket gets the node's.
        """
        bucket = self.bucket
        is_full = Feature.CLUSTERMAP_NOTIFICATION in self.features
        if (
            self.is_closing
            or not self.has_config
            or self.identity.user is None
            or not (is_full or Feature.CLUSTERMAP_NOTIFICATION_BRIEF in self.features)
        ):
            return
        if self.output.nbytes > self.engine.output_limit:
            return  # the client does not read; it sees an old version later, and asks or gets the next push
        version = self.config_version
        if version <= self.config_known:
            return
        self.config_known = version
        request = Frame(
            Magic.SERVER_REQUEST,
            CLUSTERMAP_CHANGE,
            datatype=Datatype.JSON if is_full and self.is_json else 0,
            extras=ClustermapVersion(*version).pack(),
            key=(self.config_only if bucket is None else bucket.name).encode(),
            value=self.config_json() if is_full else b"",
        )
        self.output.add(request.encode())
        self.wake()

    # ------------------------------------------------------------------------------------------- the pending request

    def wait(self, frame: Frame, resume: Callable[..., None]) -> None:
        """Leave later requests unread until `resume` of this session is called; `resume` here takes the outcome."""
        self.pending.wait(frame, resume)

    def resume(self, status: int = Status.SUCCESS, *outcome: int) -> None:
        """Finish the pending request: the event it waits for happened, or never will."""
        resume = self.pending.finish()
        if resume is not None and not self.is_closing:
            resume(status, *outcome)
            self.wake()

    def try_again(self, frame: Frame) -> None:
        """Answer a frame, which may be a request that had to wait, as if it came now."""
        try:
            self._handle(frame)
        except StoreError as error:
            self._store_failed(frame, error)

    def stream(self, frame: Frame, answers: Generator[None, None, None]) -> None:
        """Answer a request with many packets: each step of the iterator sends some, as fast as the client reads."""
        self.pending.stream(frame, answers)
        self.go_on_streaming()

    def go_on_streaming(self) -> None:
        """Send packets of a long answer until enough output waits, or for one time slice."""
        pending = self.pending
        pending.has_more_steps = False
        steps = pending.steps
        if steps is None:
            return
        stopwatch = self.engine.stopwatch
        began = stopwatch()
        limit = min(STREAM_OUTPUT_BYTES, self.engine.output_limit)
        while steps is not None and self.output.nbytes <= limit and not self.is_closing:
            try:
                next(steps)
            except StopIteration:
                steps = None
                pending.end_stream()
            except StoreError as error:
                steps = None
                frame = pending.end_stream()
                if frame is not None:
                    self._store_failed(frame, error)
            self.wake()
            if steps is not None and stopwatch() - began > SLICE_S:
                pending.has_more_steps = True
                break

    # ------------------------------------------------------------------------------------------------------- input

    def receive(self, data: bytes) -> Step:
        """Answer the whole frames at the start of `data`: the kept rest and what came since."""
        at, end = 0, len(data)
        engine, output, pending = self.engine, self.output, self.pending
        faults, wants = engine.faults, _INPUT
        while True:
            if pending.frame is not None or self.close_reason is not None or output.held_bytes > MAX_OUTPUT_BYTES:
                wants = _EVENT
                break
            if end - at < self._needed:
                break
            if at and engine.stopwatch() - engine.now > SLICE_S:
                wants = _TURN
                break
            at = self._answer_one(data, at, faults) if faults.has_requests else self._answer(data, at)
            if output.nbytes > engine.output_limit:
                wants = _ROOM
                break
        return _new_tuple(Step, (self.take_output() if output.pieces else (), wants, at, self._needed, None))

    def _answer_one(self, data: bytes, at: int, faults: RequestFaults) -> int:
        """As `_answer`, but one frame, which a fault may refuse."""
        stop = at + HEADER_BYTES + int.from_bytes(data[at + 8 : at + 12], "big")
        if data[at] not in _REQUESTS or stop > len(data):
            return self._answer(data, at)
        bucket = self.bucket.name if self.bucket is not None else ""
        vbid = int.from_bytes(data[at + 6 : at + 8], "big")
        status = faults.on_request(data[at + 1], vbid, bucket, self.names, self.engine.now)
        if status is None:
            return at + self._answer(data[at:stop], 0)
        frame = decode_frame(data[at:stop])
        if status is Status.NOT_MY_VBUCKET:
            self.refuse_vbucket(frame)
        else:
            self.refuse(frame, status, "A fault that was asked for")
        self._needed = HEADER_BYTES
        self.wake()
        return stop

    def _answer(self, data: bytes, at: int) -> int:
        """Answer whole frames from `at` on; returns where the first one begins that was not answered."""
        end = len(data)
        bucket, output = self.bucket, self.output
        if bucket is not None and bucket.behind:
            _catch_up(bucket, data, at)
        user = self.identity.user
        if user is not None and user.version != self.identity.rights_version:
            self.update_rights()
        output_limit = self.engine.output_limit
        unpack = HEADER.unpack_from
        plain = self.dispatch.plain
        while end - at >= HEADER_BYTES:
            if plain is not None and data[at + 1] in self.plain_opcodes:
                at = plain(self, data, at)
                if output.nbytes > output_limit or end - at < HEADER_BYTES:
                    break
            magic, opcode, key_length, extras_length, datatype, vbid, body, opaque, cas = unpack(data, at)
            if not self._is_sound(magic, key_length, extras_length, body):
                return at
            stop = at + HEADER_BYTES + body
            if stop > end:
                self._needed = stop - at
                return at
            framing_length = 0
            if magic in _FLEXIBLE:
                framing_length, key_length = key_length >> 8, key_length & 0xFF
            framing_at = at + HEADER_BYTES
            extras_at = framing_at + framing_length
            key_at = extras_at + extras_length
            value_at = key_at + key_length
            if data[stop : stop + 2] in _TOGETHER and data[stop : stop + 2] == data[at : at + 2]:
                at = self._receive_together(data, at)
                break
            self.began = self.engine.stopwatch()
            frame = Frame(
                magic,
                opcode,
                datatype,
                vbid,
                opaque,
                cas,
                data[framing_at:extras_at],
                data[extras_at:key_at],
                data[key_at:value_at],
                data[value_at:stop],
            )
            try:
                self._handle(frame)
            except StoreError as error:
                self._store_failed(frame, error)
            at = stop
            if self.close_reason is not None or self.pending.frame is not None or output.nbytes > output_limit:
                break
            if self.began - self.engine.now > SLICE_S or (self.bucket is not None and self.bucket.behind):
                break
        self._needed = HEADER_BYTES
        return at

    def _receive_together(self, data: bytes, at: int) -> int:
        """Handle the whole frames of one kind at `at`; returns where the next frame begins.

        Their changes of vbuckets become durable in one step, before the answers go out. If the disk is full the changes
        hold in memory, and become durable before the next commit.
        """
        kind = data[at : at + 2]
        with ExitStack() as durably:
            if self.bucket is not None:
                durably.enter_context(self.bucket.store.metadata_batch(may_wait=True))
            for _ in range(TOGETHER_MAX):
                if len(data) - at < HEADER_BYTES or data[at : at + 2] != kind:
                    break
                _, _, key_length, extras_length, _, _, body, *_ = HEADER.unpack_from(data, at)
                stop = at + HEADER_BYTES + body
                if key_length + extras_length > body or stop > len(data):
                    break
                self.began = self.engine.stopwatch()
                self.try_again(decode_frame(data, at))
                at = stop
                if self.close_reason is not None or self.is_waiting or self.output.nbytes > self.engine.output_limit:
                    break
        return at

    def _is_sound(self, magic: int, key_length: int, extras_length: int, body: int) -> bool:
        """Whether a header is well-formed; if not, close the connection without an answer."""
        if magic not in _MAGICS:
            self.close(f"0x{magic:02x} is not a magic")
            return False
        parts = extras_length + ((key_length >> 8) + (key_length & 0xFF) if magic in _FLEXIBLE else key_length)
        if parts > body:
            self.close(f"framing extras, extras and key take {parts} bytes, the body has {body}")
            return False
        if body + HEADER_BYTES > self._max_frame_bytes:
            self.close(f"a frame of {body + HEADER_BYTES} bytes, more than the {self._max_frame_bytes} allowed")
            return False
        return True

    def _handle(self, frame: Frame) -> None:
        """Answer one frame."""
        if frame.magic == Magic.SERVER_REQUEST:
            self.close("a request with the server's magic")
            return
        self.ops[frame.opcode] += 1
        is_dcp = frame.opcode in DCP_OPCODES
        if self.config_only and frame.opcode not in _MAP_ONLY:
            is_known = is_dcp or self.dispatch.commands.get(frame.opcode) is not None
            self.refuse(frame, Status.CONFIG_ONLY if is_known else Status.UNKNOWN_COMMAND)
            return
        expires_at = self.identity.expires_at
        is_stale = expires_at is not None and self.engine.now > expires_at
        if frame.magic in _RESPONSES:
            if is_stale:
                self.close("an answer after its token expired")
            else:
                self._handle_response(frame, is_dcp)
            return
        command = self.dispatch.commands.get(frame.opcode)
        if self.identity.user is None and (command is None or not command.before_login):
            self.respond(frame, Status.EACCESS)
            return
        if command is None and not is_dcp:
            self.respond(frame, Status.UNKNOWN_COMMAND)
            return
        if is_dcp:
            if is_stale:
                self.respond(frame, Status.AUTH_STALE)
            elif self.bucket is None:
                self.refuse(frame, Status.NO_BUCKET)
            else:
                self._to_dcp(frame)
            return
        assert command is not None
        wrong = fault(self, command, frame)
        if wrong is not None:
            self.refuse(frame, wrong.status, wrong.context)
        elif is_stale and frame.opcode not in _OF_LOGIN:
            self.respond(frame, Status.AUTH_STALE)
        elif self.frame_infos.get(FrameInfoId.IMPERSONATE_USER):
            self._handle_for_another(command, frame)
        else:
            self._carry_out(command, frame)

    def _carry_out(self, command: Command, frame: Frame) -> None:
        """Answer a well-formed request, if the user has the privileges."""
        refusal = (
            None
            if command.before_login
            else self.identity.refusal_of(command, frame, self.bucket, has_collections=self.has_collections)
        )
        if refusal is not None:
            self.refuse_access(frame, refusal)
        elif command.needs_bucket and self.bucket is None:
            of_engine = _OF_ENGINE_80 if self.engine.release.has(Rule.NO_BUCKET_IS_SELDOM) else _OF_ENGINE
            self.refuse(frame, Status.NOT_SUPPORTED if frame.opcode in of_engine else Status.NO_BUCKET)
        else:
            command.handler(self, frame)

    def _handle_for_another(self, command: Command, frame: Frame) -> None:
        """Answer a request on behalf of another user, with that user's rights."""
        identity = self.identity
        other = impersonated(identity.user, self.engine.users, self.frame_infos[FrameInfoId.IMPERSONATE_USER])
        if isinstance(other, Refusal):
            self.refuse_access(frame, other)
            return
        if command.before_login or not command.privilege:
            self._carry_out(command, frame)
            return
        self.identity = Identity()
        self.identity.log_in(other)
        self.identity.update(self.bucket)
        try:
            self._carry_out(command, frame)
        finally:
            self.identity = identity

    def _handle_response(self, frame: Frame, is_dcp: bool) -> None:
        """Take a response: to a request of the DCP machine, or to a pushed cluster map."""
        if frame.magic == Magic.SERVER_RESPONSE and self.identity.user is not None:
            return  # to a pushed cluster map
        if self.dcp is not None and (is_dcp or frame.opcode == Opcode.GET_ERROR_MAP):
            self._to_dcp(frame)
        else:
            self.close(f"an answer with opcode 0x{frame.opcode:02x}, which was not asked")

    def _to_dcp(self, frame: Frame) -> None:
        self.dispatch.dcp(self, frame, self.engine.now)
        if self.dcp is not None:
            # At once, so that answers keep the order of the requests.
            for piece in self.dcp.take_answers(self.engine.now):
                self.output.add(piece)
        self.wake()

    # ------------------------------------------------------------------------------------------------------ output

    def take_output(self) -> list[bytes]:
        """The answers that can go out."""
        output, bucket = self.output, self.bucket
        if output.held or (output.has_written and bucket is not None and bucket.answers_when_durable):
            out = output.take_durable(bucket)
            if output.held_bytes:
                output.held[0].bucket.hold(self)
        elif out := output.pieces:
            output.pieces, output.nbytes = [], 0
        return out

    def drop_held(self, reason: str) -> None:
        """Close the connection without the answers to writes that could not be made durable."""
        self.output.clear()
        self.close(reason)

    def send(self, room: int | None) -> Step:
        """Make the output that can be sent now: answers first, then data of DCP streams.

        Args:
            room: bytes of DCP data, a soft limit; 0 while the client takes answers only, None while it takes nothing.
        """
        pending, dcp = self.pending, self.dcp
        out: list[Any] = []
        wants_turn = False
        if room is not None:
            if pending.steps is not None:
                self.go_on_streaming()
                wants_turn = pending.has_more_steps
            out = self.take_output()
            wants_turn |= bool(out) and pending.steps is not None
            if dcp is not None and room and self.close_reason is None:
                out = out + dcp.data_to_send(room, self.engine.now)
                wants_turn |= bool(out) and dcp.has_output
                if dcp.close_reason is not None:
                    self.close(dcp.close_reason)
        elif self.output.held:
            out = self.take_output()
        wake_at = None if dcp is None else dcp.wake_at
        return _new_tuple(Step, (out, self._wants(wants_turn=wants_turn), 0, self._needed, wake_at))

    def _wants(self, *, wants_turn: bool) -> Wants:
        """The event that the session waits for after it sent."""
        output = self.output
        if self.close_reason is not None:
            return _EVENT if output.held else _CLOSE
        if wants_turn:
            self.wake()
            return _TURN
        if self.pending.frame is not None or output.nbytes > self.engine.output_limit:
            return _EVENT
        return _INPUT

    def handle_timeout(self) -> None:
        """Carry out what is due in the DCP connection."""
        if self.dcp is not None:
            self.dcp.handle_timeout(self.engine.now)
            if self.dcp.close_reason is not None:
                self.close(self.dcp.close_reason)

    # -------------------------------------------------------------------------------------------------------- end

    def connection_lost(self) -> None:
        """The connection is gone."""
        self.close_reason = self.close_reason or "the peer closed it"
        self.engine.sessions.discard(self)
        self.engine.ready.discard(self)
        self.pending.drop()
        self.output.drop_held()
        bucket = self.bucket
        if bucket is not None:
            bucket.sessions.discard(self)
            bucket.holding.discard(self)
            if self.dcp is not None and bucket.dcp_sessions.get(self.dcp.name) is self:
                del bucket.dcp_sessions[self.dcp.name]
                if isinstance(self.dcp, ConsumerConnection):
                    bucket.share_buffers()
        if isinstance(self.dcp, ProducerConnection):
            self.dcp.closed()
        self.dcp = None


def _catch_up(bucket: Bucket, data: bytes, at: int) -> None:
    """Write the newest manifest into the histories of the vbuckets that the requests in `data` from `at` on name."""
    end = len(data)
    while end - at >= HEADER_BYTES and bucket.behind:
        _, opcode, _, _, _, vbid, body, _, _ = HEADER.unpack_from(data, at)
        if opcode in _OF_WHOLE_BUCKET:
            bucket.catch_up_all()
        bucket.catch_up_at(vbid)
        at += HEADER_BYTES + body
