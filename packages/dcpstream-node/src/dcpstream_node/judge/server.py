"""`look`: ask a server for its release, its buckets and what is in the bucket, before scenarios are played."""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import dataclass, replace

from dcpstream.client.transport import cannot_connect, tls_failure
from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost
from dcpstream.model import NodeAddress
from dcpstream.runtime import Clock
from dcpstream_node.judge.connection import Connection
from dcpstream_node.judge.packets import Op, Packet, status_name
from dcpstream_node.judge.recordings import release_key
from dcpstream_node.judge.scenarios.kit import COLLECTIONS, Target
from dcpstream_node.judge.transcript import Recorder

LOOK_TIMEOUT_S = 60.0
"""Time for the few questions."""
VBUCKETS = 1024
"""Scenarios make vbuckets up to number 1,000 and more, as buckets of recorded servers have them."""
DEFAULT_SCOPE = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
_RELEASE = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that can be judged.

    Attributes:
        target: with the bucket that was chosen.
        version: as it says it, as `8.0.1-0000`; empty if it does not.
        documents: in the bucket; None if it does not say.
        vbuckets: that a bucket has; None if it does not say.
    """

    target: Target
    version: str
    documents: int | None
    vbuckets: int | None

    @property
    def release(self) -> str:
        """The release of that version, as `8.0`; empty if it says none."""
        found = _RELEASE.search(self.version)
        return found.group() if found else ""

    def check_scratch(self, *, destroy_documents: bool, vbuckets: int = VBUCKETS) -> None:
        """Check that scenarios may delete what is in the bucket, and that it has this many vbuckets.

        Raises: ConfigError: it has documents, or does not say whether, or has too few vbuckets.
        """
        bucket = self.target.bucket
        if not destroy_documents and self.documents != 0:
            count = "an unknown number of" if self.documents is None else f"{self.documents:,}"
            message = (
                f"the bucket {bucket} of {self.target.endpoint} has {count} documents, and scenarios delete vbuckets "
                "with all that is in them. Choose another bucket with --bucket, or add --destroy-documents"
            )
            raise ConfigError("--bucket", bucket, "a bucket without documents", message=message)
        if self.vbuckets is not None and self.vbuckets < vbuckets:
            message = (
                f"the bucket {bucket} of {self.target.endpoint} has {self.vbuckets} vbuckets; scenarios need "
                f"{vbuckets}. Choose another bucket with --bucket"
            )
            raise ConfigError("--bucket", bucket, f"a bucket with {vbuckets} vbuckets", message=message)


def look(target: Target, clock: Clock) -> Server:
    """Log in, and ask a server what it is. Nothing is changed.

    Args:
        target: its bucket may be empty: then the only one that the user sees is chosen.

    Raises:
        ConnectionLost: it cannot be reached, or does not answer.
        AuthenticationFailed: it refuses the user, or the bucket.
        ConfigError: a bucket must be named.
    """
    endpoint = target.endpoint
    address = NodeAddress(endpoint.host, endpoint.port)
    recorder = Recorder("look", LOOK_TIMEOUT_S, "", clock)
    try:
        conn = Connection(recorder, endpoint, "look#1")
    except ssl.SSLError as error:
        raise tls_failure(address, error) from error
    except (OSError, ValueError) as error:
        raise cannot_connect(address, error) from error
    try:
        _answer(conn, "HELLO", conn.hello(COLLECTIONS))
        login = _answer(conn, "the login", conn.auth(target.user, target.password))
        if login.status:
            raise AuthenticationFailed(
                f"{endpoint} refuses the user {target.user} ({status_name(login.status)}): check --user and --password"
            )
        version = _answer(conn, "VERSION", conn.cmd(Op.VERSION)).value.decode(errors="replace")
        bucket = target.bucket or _only_bucket(conn)
        selected = _answer(conn, "SELECT_BUCKET", conn.select(bucket))
        if selected.status:
            message = f"{endpoint} refuses the bucket {bucket} ({status_name(selected.status)}): check --bucket"
            raise AuthenticationFailed(message)
        documents = _number(conn.stats(), "curr_items_tot", "curr_items")
        vbuckets = _number(conn.stats("config"), "ep_max_vbuckets")
    finally:
        conn.close()
    return Server(target=replace(target, bucket=bucket), version=version, documents=documents, vbuckets=vbuckets)


def clear_manifest(server: Server, clock: Clock, *, destroy_collections: bool) -> None:
    """Drop all collections of the bucket but the default one, as in buckets of recorded servers; if the server lets us.

    The manager of a cluster makes the scope `_system` from 7.6 on. With it every vbucket would begin with three events.

    Raises: ConfigError: there are collections that somebody made, and they must not be destroyed; or the server does
        not answer with a manifest.
    """
    target = server.target
    conn = Connection(Recorder("clear", LOOK_TIMEOUT_S, "", clock), target.endpoint, "clear#1")
    try:
        conn.hello(COLLECTIONS)
        conn.auth(target.user, target.password)
        conn.select(target.bucket)
        answer = conn.cmd(Op.COLLECTIONS_GET_MANIFEST)
        if answer is None or answer.status:
            return
        try:
            manifest = json.loads(answer.value)
            names = [(scope["name"], each["name"]) for scope in manifest["scopes"] for each in scope["collections"]]
            uid = int(manifest["uid"], 16) + 1
        except (ValueError, TypeError, KeyError) as error:
            message = (
                f"{target.endpoint} answers GET_COLLECTIONS_MANIFEST with something else than a manifest ({error!r}), "
                "so it is not known which collections would be dropped. Judge it with --read-only"
            )
            raise ConfigError("--bucket", target.bucket, "a bucket with a manifest", message=message) from error
        made = [".".join(name) for name in names if name[0] != "_system" and name != ("_default", "_default")]
        if made and not destroy_collections:
            message = (
                f"the bucket {target.bucket} of {target.endpoint} has the collections {', '.join(made)}, which would "
                "be dropped. Choose another bucket with --bucket, or add --destroy-documents"
            )
            raise ConfigError("--bucket", target.bucket, "a bucket without collections", message=message)
        if names != [("_default", "_default")]:
            conn.cmd(Op.COLLECTIONS_SET_MANIFEST, val=json.dumps({"uid": f"{uid:x}", "scopes": [DEFAULT_SCOPE]}))
    finally:
        conn.close()


def _answer(conn: Connection, what: str, answer: Packet | None) -> Packet:
    if answer is None:
        raise ConnectionLost(f"{conn.endpoint} did not answer {what}: is this the data port of a server?")
    return answer


def _only_bucket(conn: Connection) -> str:
    names = _answer(conn, "LIST_BUCKETS", conn.cmd(Op.LIST_BUCKETS)).value.decode(errors="replace").split()
    if len(names) != 1:
        there = f"The user sees {', '.join(names)}" if names else "The user sees none"
        message = f"--bucket is missing: which bucket of {conn.endpoint} is for the scenarios? {there}"
        raise ConfigError("--bucket", None, "the name of a bucket", message=message)
    return names[0]


def _number(stats: dict[str, str], *names: str) -> int | None:
    """The first of these statistics that is a number."""
    found = (stats[name] for name in names if stats.get(name, "").isdecimal())
    return next(map(int, found), None)


def release_for(server: Server, known: tuple[str, ...]) -> str:
    """The recorded release to compare a server with.

    Raises: ConfigError: there is no recording of its release.
    """
    if server.release in known:
        return server.release
    said = f"says that it is release {server.release}" if server.release else "does not say its release"
    message = (
        f"{server.target.endpoint} {said}; there are recordings of {' and '.join(known)}. Choose one with --release"
    )
    raise ConfigError("--release", server.release or None, " or ".join(known), message=message)


def common_release(first: Server, second: Server) -> str:
    """The release whose scenarios both servers can play. Raises: ConfigError: one does not say its release."""
    for server in (first, second):
        if not server.release:
            message = f"{server.target.endpoint} does not say its release. Choose the scenarios' with --release"
            raise ConfigError("--release", None, "a release as 8.0", message=message)
    return min(first.release, second.release, key=release_key)
