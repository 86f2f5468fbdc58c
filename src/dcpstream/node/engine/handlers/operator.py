"""Commands for who runs a server, most of which have nothing to do on this node.

All are checked as a 7.2 server checks them, so that what is malformed or not allowed is answered alike. Those that
have nothing to work on here are then NOT_SUPPORTED; none is taken and forgotten.

Source: kv_engine daemon/mcbp_validators.cc, daemon/mcbp_privileges.cc, daemon/session_cas.cc, daemon/ioctl.cc,
engines/ep/src/ep_vb.cc (evictKey).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcpstream.node.engine.bucket import documents
from dcpstream.node.engine.commands import Command, CommandTable, Fault, Part
from dcpstream.node.engine.handlers.keys import active_place
from dcpstream.wire import Datatype, Frame, Opcode, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

NAMES = {
    0x23: "IOCTL_GET",
    0x24: "IOCTL_SET",
    0x25: "CONFIG_VALIDATE",
    0x26: "CONFIG_RELOAD",
    0x27: "AUDIT_PUT",
    0x28: "AUDIT_CONFIG_RELOAD",
    0x29: "SHUTDOWN",
    0x97: "LAST_CLOSED_CHECKPOINT",
    0xAF: "IFCONFIG",
    0xB4: "SET_CLUSTER_CONFIG",
    0xF0: "SCRUB",
    0xF1: "ISASL_REFRESH",
    0xF2: "SSL_CERTS_REFRESH",
    0xF3: "GET_CMD_TIMER",
    0xF4: "SET_CTRL_TOKEN",
    0xF5: "GET_CTRL_TOKEN",
    0xF6: "UPDATE_EXTERNAL_USER_PERMISSIONS",
    0xF7: "RBAC_REFRESH",
    0xF8: "AUTH_PROVIDER",
    0xFB: "DROP_PRIVILEGE",
    0xFC: "ADJUST_TIMEOFDAY",
    0xFD: "EWOULDBLOCK_CTL",
}
"""Names of those that are not in the wire layer's table."""

_OPCODES = {name: opcode for opcode, name in NAMES.items()}
_TOKEN_BYTES, _TIMER_BYTES, _AUDIT_BYTES, _CONFIG_BYTES = 8, 1, 4, 16
_CLOCK_BYTES, _BLOCK_BYTES = 9, 12
_FIRST_REVISION, _NO_EPOCH = 1, -1


def refuse(session: Session, frame: Frame) -> None:
    """For who runs a server: there is nothing here that it could work on, it is NOT_SUPPORTED."""
    session.refuse(frame, Status.NOT_SUPPORTED)


def no_such_property(session: Session, frame: Frame) -> None:
    """IOCTL: there are no properties, every name is EINVAL."""
    session.refuse(frame, Status.EINVAL)


def evict(session: Session, frame: Frame) -> None:
    """EVICT_KEY: answered as the server does; values are kept on disk anyway."""
    place = active_place(session, frame)
    if place is None:
        return
    vbucket, key = place
    meta = documents.live_meta(vbucket, key, session.engine.unix_ns)
    if meta is None or meta.is_deleted:
        session.refuse(frame, Status.TMPFAIL if session.is_degraded else Status.KEY_ENOENT)
    elif meta.seqno > vbucket.persisted_seqno:
        session.refuse(frame, Status.KEY_EEXISTS)
    else:
        session.respond(frame, value=b"Ejected.")


def get_token(session: Session, frame: Frame) -> None:
    """GET_CTRL_TOKEN: the CAS that commands which change vbuckets may name."""
    session.respond(frame, cas=session.engine.control_token)


def set_token(session: Session, frame: Frame) -> None:
    """SET_CTRL_TOKEN: another one, if the old one is named; 0 stands for any."""
    engine = session.engine
    if frame.cas in (0, engine.control_token):
        engine.control_token = int.from_bytes(frame.extras, "big")
        session.respond(frame, cas=engine.control_token)
    else:
        session.respond(frame, Status.KEY_EEXISTS, cas=engine.control_token)


def _check_token(_session: Session, frame: Frame) -> Fault | None:
    return None if any(frame.extras) else Fault(Status.EINVAL, "New CAS must be set")


def _check_map(_session: Session, frame: Frame) -> Fault | None:
    epoch, revision = (int.from_bytes(frame.extras[at : at + 8], "big", signed=True) for at in (0, 8))
    if revision < _FIRST_REVISION:
        return Fault(Status.EINVAL, "Revision number must not be less than 1")
    if epoch < _FIRST_REVISION and epoch != _NO_EPOCH:
        return Fault(Status.EINVAL, "Epoch must not be less than 1 (or -1)")
    return None


def _check_interface(_session: Session, frame: Frame) -> Fault | None:
    if frame.key not in (b"define", b"delete", b"list", b"tls"):
        what = 'Key must be "define", "delete", "list", "tls"' if frame.value else "Request must include value"
        return Fault(Status.EINVAL, what)
    if frame.key == b"list" and frame.value:
        return Fault(Status.EINVAL, "Request must not include value")
    if frame.key in (b"define", b"delete") and not frame.value:
        return Fault(Status.EINVAL, "Request must include value")
    return None


def _only_in_tests(_session: Session, _frame: Frame) -> Fault | None:
    return Fault(Status.NOT_SUPPORTED, "Only available for unit tests")


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    key: dict[str, Any] = {"key": Part.REQUIRED}
    value: dict[str, Any] = {"value": Part.REQUIRED}
    some: dict[str, Any] = {"value": Part.OPTIONAL}
    node: dict[str, Any] = {"privilege": "Administrator", "needs_bucket": False}
    shapes: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("CONFIG_VALIDATE", "UPDATE_EXTERNAL_USER_PERMISSIONS"), value),
        (("CONFIG_RELOAD", "AUDIT_CONFIG_RELOAD", "SCRUB", "ISASL_REFRESH", "SSL_CERTS_REFRESH"), {}),
        (("RBAC_REFRESH", "AUTH_PROVIDER"), {}),
        (("AUDIT_PUT",), {"extras": (_AUDIT_BYTES,), **value}),
        (("SHUTDOWN",), {"has_cas": True, "needs_cas": True}),
        (("IFCONFIG",), {**key, **some, "datatypes": int(Datatype.JSON), "check": _check_interface}),
    )
    table.add(_OPCODES["IOCTL_GET"], Command(no_such_property, **key, **node))
    table.add(_OPCODES["IOCTL_SET"], Command(no_such_property, **key, **some, **node))
    for names, shape in shapes:
        table.add((_OPCODES[name] for name in names), Command(refuse, **shape, **node))
    table.add(
        _OPCODES["SET_CLUSTER_CONFIG"],
        Command(
            refuse,
            extras=(_CONFIG_BYTES,),
            key=Part.OPTIONAL,
            value=Part.REQUIRED,
            datatypes=int(Datatype.JSON),
            has_cas=True,
            check=_check_map,
            **node,
        ),
    )
    table.add(_OPCODES["GET_CTRL_TOKEN"], Command(get_token, **node))
    table.add(
        _OPCODES["SET_CTRL_TOKEN"], Command(set_token, extras=(_TOKEN_BYTES,), has_cas=True, check=_check_token, **node)
    )
    table.add(Opcode.EVICT_KEY, Command(evict, key=Part.REQUIRED, is_document=True, privilege="Administrator"))
    table.add(_OPCODES["LAST_CLOSED_CHECKPOINT"], Command(refuse, privilege="Read"))
    table.add(_OPCODES["GET_CMD_TIMER"], Command(refuse, extras=(_TIMER_BYTES,), key=Part.OPTIONAL, needs_bucket=False))
    table.add(_OPCODES["DROP_PRIVILEGE"], Command(refuse, key=Part.REQUIRED, needs_bucket=False))
    table.add(
        _OPCODES["ADJUST_TIMEOFDAY"], Command(refuse, extras=(_CLOCK_BYTES,), check=_only_in_tests, needs_bucket=False)
    )
    table.add(
        _OPCODES["EWOULDBLOCK_CTL"],
        Command(refuse, extras=(_BLOCK_BYTES,), key=Part.OPTIONAL, check=_only_in_tests, needs_bucket=False),
    )
