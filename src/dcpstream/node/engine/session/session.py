"""One client connection, without the socket: bytes in, bytes out.

Theory of operation: `receive` walks over the whole frames of a piece of the byte stream and answers each at once, so
answers come in the order of the requests. Frequent plain requests (GET, SET, … of a session that is ready for them)
take a direct way that never builds a `Frame`; the rest go through the command table, which refuses what is malformed
or not allowed. DCP frames go to the DCP part. What is to be sent waits in `data_to_send`; the shell takes it while its
transport is writable, and stops reading while too much waits.

A session waits at most for one request (SEQNO_PERSISTENCE, a durable write, a vbucket that is pending, the many packets
of a range scan): later requests stay unread until it is answered, so answers come in order.

Source: kv_engine docs/BinaryProtocol.md, docs/sasl.md, daemon/connection.cc, daemon/cookie.cc (errors, XERROR).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dcpstream.errors import StoreError
from dcpstream.node.engine.access.permission import NOTHING, Refusal, has, impersonated, refusal_in, refusal_of
from dcpstream.node.engine.commands import Command, fault
from dcpstream.node.engine.session.bulk import BULK_BYTES, bulk_set
from dcpstream.node.engine.session.held import HeldAnswers
from dcpstream.node.engine.session.waiting import RESPONSES, Waiting
from dcpstream.protocol.sasl import MECHANISMS, PLAIN, ServerLogin
from dcpstream.wire import (
    HEADER,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAME_BYTES_BEFORE_AUTH,
    Datatype,
    Feature,
    Frame,
    FrameInfoId,
    Magic,
    Opcode,
    Status,
)

if TYPE_CHECKING:
    from dcpstream.model import Manifest
    from dcpstream.node.engine.access.users import User
    from dcpstream.node.engine.bucket.bucket import Bucket
    from dcpstream.node.engine.bucket.vbucket import VBucket
    from dcpstream.node.engine.engine import Engine
    from dcpstream.node.engine.session.endpoint import DcpEndpoint

logger = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 2 * 1024 * 1024
"""Answers that wait beyond which no further request is read: a client that asks more than it reads is slowed down."""

SLICE_S = 0.002
"""Requests that are answered one by one take so long, then those of other connections have their turn: a thousand
stream requests, or as many that are refused, take fifty times as long."""

_NOT_PLAIN = tuple(name for name in MECHANISMS if name != PLAIN)
NONCE_BITS = 144


_REQUEST = int(Magic.REQUEST)
_SET = int(Opcode.SET)
_DCP_FIRST, _DCP_LAST = int(Opcode.DCP_OPEN), int(Opcode.DCP_CACHE_TRANSFER_END)
_OPCODES = frozenset(int(opcode) for opcode in Opcode)
_MAGICS = frozenset(int(magic) for magic in Magic)
_FLEXIBLE = frozenset((int(Magic.FLEX_REQUEST), int(Magic.FLEX_RESPONSE)))


FastHandler = Callable[["Session", bytes, int, int, int, int, int, int, int, int], bool]
"""Answers one whole request in `data[at:stop]`, or returns False to leave it to the command table. Arguments: session,
data, at, stop, key length, extras length, datatype, vbid, opaque, CAS."""

_OF_WHOLE_BUCKET = frozenset((Opcode.STAT, Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_RANDOM_KEY))
"""Requests that look at all vbuckets, whichever their header names."""


class Session(Waiting):
    """A connection's state.

    Args:
        peer: who is at the other end, for logs.
        local_host: the address at which the client reached the node.
        is_secure: whether the connection is encrypted.

    Attributes:
        user: who logged in, or None.
        rights: what the user may do in the whole selected bucket.
        is_certified: the user is the one of a certificate, and there is no other login.
        bucket: the selected bucket, or None.
        dcp: the DCP side, or None before DCP_OPEN.
        has_written: whether the output that waits tells of a write.
        held: answers that wait until what they tell of is durable.
        needed: bytes that the next frame needs in all before `receive` can go on; 0 if not known.
        ops: where its requests are counted, by opcode: with the bucket, or with the node.
        frame_infos, payload, parsed: of the request that is being answered: what its framing extras ask for, its value
            without compression, and what its command's check made of it.
        config_sent: version of the cluster configuration that the client was sent last, of its present bucket.
        uses_maps: whether the client asked for a cluster configuration, or in HELLO for something about them.
    """

    def __init__(self, engine: Engine, peer: str, local_host: str = "127.0.0.1", *, is_secure: bool = False) -> None:
        super().__init__()
        self.engine = engine
        self.peer = peer
        self.local_host = local_host
        self.ops = engine.counters.ops
        self.agent = ""
        self.user: User | None = None
        self.rights = NOTHING
        self._rights_of: User | None = None
        self._rights_version = 0
        self.places: dict[int, tuple[str, str]] = {}
        self.places_of: Manifest | None = None
        self.is_certified = False
        self.bucket: Bucket | None = None
        self.has_collections = False
        self.has_tokens = False
        self.dcp: DcpEndpoint | None = None
        self.needed = HEADER_BYTES
        self.login = ServerLogin(
            engine.users.credentials,
            lambda: engine.random.getrandbits(NONCE_BITS).to_bytes(NONCE_BITS // 8, "big"),
            engine.users.decoy,
            MECHANISMS if is_secure or not engine.plain_needs_tls else _NOT_PLAIN,
        )
        self.has_written = False
        self.held = HeldAnswers()
        self.frame_infos: dict[int, bytes] = {}
        self.payload = b""
        self.parsed: object = None
        self.config_sent = (0, 0)
        self.uses_maps = False
        self._max_frame_bytes = MAX_FRAME_BYTES_BEFORE_AUTH
        self.fast: dict[int, FastHandler] = {}

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def takes_requests(self) -> bool:
        """Whether a further request may be answered: none is waited for, and not too much waits for the disk."""
        return self._waiting is None and self.close_reason is None and self.held.size <= MAX_OUTPUT_BYTES

    @property
    def is_ready_to_read_on(self) -> bool:
        """Whether requests that were left unread can be answered now."""
        return self._waiting is None and self.close_reason is None and self.out_bytes <= self.engine.output_limit

    @property
    def is_degraded(self) -> bool:
        """Whether requests for documents are switched off in the selected bucket: what is not there may come."""
        return self.bucket is not None and not self.bucket.takes_traffic

    def may(self, privilege: str) -> bool:
        """Whether the user has a privilege in the whole selected bucket, or of the node if there is none."""
        return self.user is not None and has(self.rights, privilege)

    def refusal_in(self, privilege: str, collection_id: int) -> Refusal | None:
        """Why a privilege is refused in a collection of the selected bucket, or None."""
        return refusal_in(self, privilege, collection_id)

    def refuse_access(self, frame: Frame, refusal: Refusal) -> None:
        """Refuse a request to a user who may not make it, or who may not know of the collection that it is about."""
        if refusal.status == Status.UNKNOWN_COLLECTION:
            self.refuse_unknown(frame, refusal.status)
        elif refusal.privilege:
            name = Opcode(frame.opcode).name if frame.opcode in _OPCODES else f"0x{frame.opcode:02x}"
            why = f"Authorization failure: can't execute {name} operation without the {refusal.privilege} privilege"
            self.refuse_with_reference(frame, refusal.status, why, why)
        elif refusal.context:
            self.refuse(frame, refusal.status, refusal.context)
        else:
            self.refuse(frame, refusal.status)

    def refuse_unknown(self, frame: Frame, status: int) -> None:
        """UNKNOWN_COLLECTION or UNKNOWN_SCOPE, with the version of the manifest that does not have it."""
        assert self.bucket is not None, "only a bucket has collections"
        if not (self.has_collections or Feature.XERROR in self.features):
            status = Status.EINVAL  # such a client does not know what a collection is
        uid = f"{self.bucket.manifest.uid:x}"
        self.refuse(frame, status, "Unknown scope or collection in operation", manifest_uid=uid)

    def logged_in(self, user: User) -> None:
        """The login succeeded."""
        self.user = user
        self._max_frame_bytes = MAX_FRAME_BYTES
        if self.bucket is not None and not user.may_use(self.bucket.name):
            self.select(None)
        self.update_rights()

    def logged_out(self) -> None:
        """A new login begins: until it succeeds the session is nobody's."""
        self.user = None
        self._max_frame_bytes = MAX_FRAME_BYTES_BEFORE_AUTH
        self.update_rights()

    def update_rights(self) -> None:
        """What the user may do may be something else now: after a login, in another bucket, by a change of roles."""
        user = self.user
        self.rights, self._rights_of = NOTHING, user
        if user is not None:
            self._rights_version = user.version
            self.rights = user.rights(self.bucket.name if self.bucket is not None else "")
        self.update_fast()

    def select(self, bucket: Bucket | None) -> None:
        """Use a bucket from now on, or none."""
        if self.bucket is not None:
            if bucket is not self.bucket and self.has_written and self.bucket.answers_when_durable:
                # What was written to the one waits for its commit, whatever the other does.
                self.out, out = [], self.out
                self.held.hold(self.bucket, out)
                self.bucket.hold(self)
                self.out_bytes = self.held.size
                self.has_written = False
            self.bucket.sessions.discard(self)
        if bucket is not self.bucket:
            self.config_sent = (0, 0)
        if bucket is not None:
            bucket.catch_up_all()  # requests for it may be in the same read, which nobody looks through again
        self.bucket = bucket
        self.ops = self.engine.counters.ops if bucket is None else bucket.ops
        if bucket is not None:
            bucket.sessions.add(self)
        self.update_rights()

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
        self.update_fast()

    def enable_json(self) -> None:
        """DCP_OPEN switches the JSON datatype on."""
        self.datatypes |= int(Datatype.JSON)

    def changed(self, vbucket: VBucket) -> None:
        """A vbucket of the selected bucket may have new items: DCP connections are told at the turn's end."""
        assert self.bucket is not None, "only a bucket's vbuckets change"
        self.bucket.dirty.add(vbucket.vbid)
        self.has_written = True

    def update_fast(self) -> None:
        """Choose the direct ways that this session's user and bucket allow."""
        self.fast = self.engine.fast_handlers(self)

    # ------------------------------------------------------------------------------------------------------- input

    def receive(self, data: bytes) -> int:
        """Answer the whole frames at the start of `data`.

        Returns: how many bytes were consumed. Hand over the rest again together with what comes next: at least
            `needed` bytes, or after output went out (`out_bytes` above the limit), or when `is_waiting` is over. If
            there are as many, what was handed over took its time, and others should have theirs.
        """
        at, end = 0, len(data)
        user, bucket = self.user, self.bucket
        if bucket is not None and bucket.behind:
            _catch_up(bucket, data)
        if user is not None and (user is not self._rights_of or user.version != self._rights_version):
            self.update_rights()
        fast, ops = self.fast, self.ops
        output_limit = self.engine.output_limit
        unpack = HEADER.unpack_from
        if end >= BULK_BYTES and _SET in fast and not self.is_tracing and data[1] == _SET and data[0] == _REQUEST:
            at = bulk_set(self, data)
        while end - at >= HEADER_BYTES:
            magic, opcode, key_length, extras_length, datatype, vbid, body, opaque, cas = unpack(data, at)
            stop = at + HEADER_BYTES + body
            if stop > end:
                if self._is_sound(magic, key_length, extras_length, body):
                    self.needed = stop - at
                return at
            try:
                is_done = (
                    magic == _REQUEST
                    and opcode in fast
                    and extras_length + key_length <= body
                    and fast[opcode](self, data, at, stop, key_length, extras_length, datatype, vbid, opaque, cas)
                )
            except StoreError:
                is_done = False  # the long way meets the same, and can answer it
            if is_done:
                ops[opcode] += 1
                at = stop
                if self.out_bytes > output_limit:
                    break
                continue
            if not self._is_sound(magic, key_length, extras_length, body):
                return at
            framing_length = 0
            if magic in _FLEXIBLE:
                framing_length, key_length = key_length >> 8, key_length & 0xFF
            framing_at = at + HEADER_BYTES
            extras_at = framing_at + framing_length
            key_at = extras_at + extras_length
            value_at = key_at + key_length
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
            if self.close_reason is not None or self._waiting is not None or self.out_bytes > output_limit:
                break
            if self.began - self.engine.now > SLICE_S or (self.bucket is not None and self.bucket.behind):
                break
            fast, ops = self.fast, self.ops
        self.needed = HEADER_BYTES
        return at

    def _is_sound(self, magic: int, key_length: int, extras_length: int, body: int) -> bool:
        """Whether a header can be one; if not, the connection is closed without an answer."""
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
        is_dcp = _DCP_FIRST <= frame.opcode <= _DCP_LAST
        if frame.magic in RESPONSES:
            self._handle_response(frame, is_dcp)
            return
        command = self.engine.commands.get(frame.opcode)
        if self.user is None and (command is None or not command.before_login):
            self.respond(frame, Status.EACCESS)
            return
        if command is None and not is_dcp:
            self.respond(frame, Status.UNKNOWN_COMMAND)
            return
        if is_dcp:
            if self.bucket is None:
                self.refuse(frame, Status.NO_BUCKET)
            else:
                self._to_dcp(frame)
            return
        assert command is not None
        wrong = fault(self, command, frame)
        if wrong is not None:
            self.refuse(frame, wrong.status, wrong.context)
        elif self.frame_infos.get(FrameInfoId.IMPERSONATE_USER):
            self._handle_for_another(command, frame)
        else:
            self._dispatch(command, frame)

    def _dispatch(self, command: Command, frame: Frame) -> None:
        """Answer a well-formed request, if the user may ask for that."""
        refusal = None if command.before_login else refusal_of(self, command, frame)
        if refusal is not None:
            self.refuse_access(frame, refusal)
        elif command.needs_bucket and self.bucket is None:
            self.refuse(frame, Status.NO_BUCKET)
        else:
            command.handler(self, frame)

    def _handle_for_another(self, command: Command, frame: Frame) -> None:
        """Answer a request that is made for another user: with that user's rights, if the own ones allow to ask."""
        other = impersonated(self, self.frame_infos[FrameInfoId.IMPERSONATE_USER])
        if isinstance(other, Refusal):
            self.refuse_access(frame, other)
            return
        if command.before_login or not command.privilege:
            self._dispatch(command, frame)
            return
        user, rights = self.user, self.rights
        self.user, self.rights = other, other.rights(self.bucket.name if self.bucket is not None else "")
        try:
            self._dispatch(command, frame)
        finally:
            self.user, self.rights = user, rights

    def _handle_response(self, frame: Frame, is_dcp: bool) -> None:
        """Take an answer to something that the node asked: only DCP asks, and the push of cluster maps."""
        if frame.magic == Magic.SERVER_RESPONSE:
            return  # to a cluster map that was pushed; nothing follows from it
        elif self.dcp is not None and (is_dcp or frame.opcode == Opcode.GET_ERROR_MAP):
            self._to_dcp(frame)
        else:
            self.close(f"an answer with opcode 0x{frame.opcode:02x}, which was not asked")

    def _to_dcp(self, frame: Frame) -> None:
        self.engine.dcp_handler(self, frame, self.engine.now)
        if self.dcp is not None:
            # At once, so that no later request, which may be another machine's to answer, is answered before.
            for piece in self.dcp.take_answers(self.engine.now):
                self.send(piece)
        self.engine.ready.add(self)

    # ------------------------------------------------------------------------------------------------------ output

    def take_output(self) -> list[bytes]:
        """The answers that can go out."""
        out: list[bytes] = self.out
        if out:
            self.out = []
            self.out_bytes = 0
        if self.held or (self.has_written and self.bucket is not None and self.bucket.answers_when_durable):
            return self._hold(out)
        return out

    def _hold(self, out: list[bytes]) -> list[bytes]:
        """Keep answers until what they tell of is durable, and those behind them; returns what is."""
        bucket = self.bucket
        if out:
            if self.has_written and bucket is not None and bucket.answers_when_durable:
                self.held.hold(bucket, out)
            else:
                self.held.follow(out)
            self.has_written = False
        released = self.held.release()
        self.out_bytes = self.held.size
        awaited = self.held.awaited
        if awaited is not None:
            awaited.hold(self)
        return released

    def drop_held(self, reason: str) -> None:
        """What the held answers tell of could not be made durable: nobody is told that it was."""
        self.held.drop()
        self.out.clear()
        self.out_bytes = 0
        self.close(reason)

    def data_to_send(self, max_bytes: int) -> list[bytes]:
        """What can be sent now: answers first, then DCP up to about `max_bytes`."""
        self.go_on_streaming()
        out = self.take_output()
        if self.dcp is not None and self.close_reason is None and max_bytes:
            out = out + self.dcp.data_to_send(max_bytes, self.engine.now)
            if self.dcp.close_reason is not None:
                self.close(self.dcp.close_reason)
        return out

    # -------------------------------------------------------------------------------------------------------- end

    def connection_lost(self) -> None:
        """The connection is gone."""
        self.close_reason = self.close_reason or "the peer closed it"
        self.engine.sessions.discard(self)
        self.engine.ready.discard(self)
        self.stop_waiting()
        bucket = self.bucket
        self.held.drop()
        if bucket is not None:
            bucket.sessions.discard(self)
            bucket.holding.discard(self)
            if self.dcp is not None and bucket.dcp_sessions.get(self.dcp.name) is self:
                del bucket.dcp_sessions[self.dcp.name]
        closed = getattr(self.dcp, "closed", None)
        if closed is not None:
            closed(self.engine.now)
        self.dcp = None


def _catch_up(bucket: Bucket, data: bytes) -> None:
    """Have vbuckets tell the newest manifest before the requests in `data` look at them."""
    at, end = 0, len(data)
    while end - at >= HEADER_BYTES and bucket.behind:
        _, opcode, _, _, _, vbid, body, _, _ = HEADER.unpack_from(data, at)
        if opcode in _OF_WHOLE_BUCKET:
            bucket.catch_up_all()
        bucket.catch_up_at(vbid)
        at += HEADER_BYTES + body
