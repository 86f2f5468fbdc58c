"""CREATE_BUCKET and DELETE_BUCKET, as a cluster manager sends them. Source: kv_engine docs/BinaryProtocol.md."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dcpstream.errors import DcpstreamError
from dcpstream.node.engine.commands import Command, CommandTable, Part
from dcpstream.wire import Frame, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

CREATE_BUCKET, DELETE_BUCKET = 0x85, 0x86
"""Not in the published list of opcodes any more, but servers answer them."""

ENGINE_MODULE = b"ep.so"
NO_ENGINE_MODULE = b"nobucket.so"
MAX_VBUCKETS = 1024


def create_bucket(session: Session, frame: Frame) -> None:
    """CREATE_BUCKET: the value is the name of the engine's module, a zero, and `name=value;…`.

    Of the settings only `max_vbuckets` is looked at. The bucket begins without a vbucket.
    """
    engine = session.engine
    module, _, settings = frame.value.partition(b"\0")
    name = frame.key.decode("utf-8", "replace")
    known = dict(item.split(b"=", 1) for item in settings.split(b";") if b"=" in item)
    count = known.get(b"max_vbuckets", b"%d" % MAX_VBUCKETS)
    if engine.bucket_host is None:
        session.respond(frame, Status.NOT_SUPPORTED)
    elif module == NO_ENGINE_MODULE:
        session.refuse(frame, Status.NOT_SUPPORTED, "The internal bucket type nobucket.so can't be created")
    elif module == ENGINE_MODULE and name in engine.buckets:
        session.respond(frame, Status.KEY_EEXISTS)
    elif module != ENGINE_MODULE or not count.isdigit() or not 1 <= int(count) <= MAX_VBUCKETS:
        session.refuse(frame, Status.EINVAL, f"a bucket of {ENGINE_MODULE.decode()} has 1 to {MAX_VBUCKETS} vbuckets")
    else:
        try:
            engine.bucket_host.create(name, int(count))
        except DcpstreamError as error:
            session.refuse(frame, Status.EINVAL, str(error))
        else:
            session.respond(frame)


def delete_bucket(session: Session, frame: Frame) -> None:
    """DELETE_BUCKET: its connections are closed, then it is answered; what it held is gone."""
    engine = session.engine
    name = frame.key.decode("utf-8", "replace")
    if engine.bucket_host is None:
        session.respond(frame, Status.NOT_SUPPORTED)
    elif name not in engine.buckets:
        session.respond(frame, Status.KEY_ENOENT)
    else:
        engine.bucket_host.delete(name)
        session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    command = partial(Command, has_cas=True, key=Part.REQUIRED, needs_bucket=False, privilege="NodeSupervisor")
    table.add(CREATE_BUCKET, command(create_bucket, value=Part.REQUIRED))
    table.add(DELETE_BUCKET, command(delete_bucket, value=Part.OPTIONAL))
