"""A node in this process: its own thread with its own event loop, started and stopped like any other resource."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import re
import shutil
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings, NodeAddress
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.node.buckets import RunningBuckets
from dcpstream.node.dcp import dcp_stats, handle_dcp
from dcpstream.node.engine import ClusterConfig, Engine, Users, new_engine
from dcpstream.node.engine.config import read_alternates
from dcpstream.node.server import KvServer
from dcpstream.runtime import SystemClock, SystemRandom
from dcpstream.store import BucketStore, MemoryBucketStore

logger = logging.getLogger(__name__)

DEFAULT_USERNAME = "Administrator"
DEFAULT_PASSWORD = "password"
DEFAULT_FLUSH_INTERVAL_S = 0.05
"""Pause between commits to disk: what a crash may lose, against one sync per pause."""
_BUCKET_NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%.-]{0,99}")

START_TIMEOUT_S = 60.0
"""Longest wait for the store to be opened; 1 M documents take about a second."""
STOP_TIMEOUT_S = 30.0
ORDER_TIMEOUT_S = 60.0
"""Longest wait for a bucket to be made or deleted."""


class Node:
    """An embedded Couchbase-compatible node.

    Args:
        buckets: names of the buckets.
        vbuckets: of each bucket, 1 to 1024; clients must not assume 1024.
        path: a directory to keep the data in; None keeps it in memory.
        host: address to listen on.
        port: KV port, 0 for any free one.
        mgmt_port: management port, 0 for any free one.
        username: the administrator's name.
        password: the administrator's password.
        users: more users, `{name: {"password": …, "privileges": [… | "all"]}}`.
        flush_interval_s: pause between commits to disk.
        settings: of all buckets that are made, or by name; a bucket that is there on disk keeps its own.
        alternate_addresses: how other networks reach the node, `{network: {"hostname": …, "kv": port, "mgmt": port}}`;
            ports that are left out are the same there. Clients choose by the network `external`, or by the address that
            they were given.

    Attributes:
        port, mgmt_port: the ports it listens on, once started.

    Raises:
        ConfigError: an option with an unusable value, or a port that is taken, when started.
        StoreError: the data directory cannot be used, when started.
    """

    def __init__(
        self,
        buckets: Sequence[str] = ("default",),
        vbuckets: int = MAX_VBUCKETS,
        path: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        mgmt_port: int = 0,
        username: str = DEFAULT_USERNAME,
        password: str = DEFAULT_PASSWORD,
        users: Mapping[str, Any] | None = None,
        flush_interval_s: float = DEFAULT_FLUSH_INTERVAL_S,
        settings: BucketSettings | Mapping[str, BucketSettings] | None = None,
        alternate_addresses: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(buckets, str) or not buckets or not all(buckets):
            raise ConfigError("buckets", buckets, "a list of at least one name")
        for name in buckets:
            check_bucket_name(name)
        if not 1 <= vbuckets <= MAX_VBUCKETS:
            raise ConfigError("vbuckets", vbuckets, f"1 to {MAX_VBUCKETS}")
        if not flush_interval_s > 0:
            raise ConfigError("flush_interval_s", flush_interval_s, "seconds above 0")
        for option, value in (("port", port), ("mgmt_port", mgmt_port)):
            if not 0 <= value < 1 << 16:
                raise ConfigError(option, value, "0 to 65535")
        if not is_loopback(host) and password == DEFAULT_PASSWORD:
            raise ConfigError("password", "the default", f"one of your own, to listen on {host} for others")
        self._bucket_names = tuple(dict.fromkeys(buckets))
        self._vbuckets = vbuckets
        self._path = Path(path) if path is not None else None
        self._wanted_ports = port, mgmt_port
        self.host = host
        self.port = 0
        self.mgmt_port = 0
        self.username = username
        self.password = password
        self._flush_interval_s = flush_interval_s
        self._settings = settings if settings is not None else BucketSettings()
        self._alternates = read_alternates(alternate_addresses)
        self._users = Users(SystemRandom())
        self._users.add(username, password)
        if users is not None:
            self._users.add_from_json(users)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_crashing = False
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self.engine: Engine | None = None
        self._server: KvServer | None = None
        self._buckets: RunningBuckets | None = None

    # ------------------------------------------------------------------------------------------------- from outside

    @property
    def connection_string(self) -> str:
        """What clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"couchbase://{host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the node serves."""
        return self._thread is not None and self._thread.is_alive() and self._is_ready.is_set()

    def start(self) -> Self:
        """Serve; returns when the ports answer. A node that runs already is left alone.

        Raises:
            ConfigError: a port is taken. StoreError: the data cannot be used.
        """
        if self._thread is not None:
            return self
        self._is_ready.clear()
        self._error = None
        self._is_crashing = False
        self._thread = threading.Thread(target=self._run, name="dcpstream-node", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(START_TIMEOUT_S):
            raise DcpstreamError(f"the node was not up within {START_TIMEOUT_S:.0f} s")
        error = self._take_error()
        if error is not None:
            self._thread.join()
            self._thread = None
            raise error
        return self

    def stop(self) -> None:
        """Stop serving; what was written is made durable. A node that does not run is left alone."""
        self._end()

    def crash(self) -> None:
        """Stop as if killed: what no commit has made durable yet is lost. For tests."""
        self._is_crashing = True
        self._end()

    def _end(self) -> None:
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        stopping = self._stopping
        if stopping is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stopping.set)
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise DcpstreamError(f"the node did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._thread = None
        self._loop = None
        error = self._take_error()
        if error is not None:
            raise error

    def _take_error(self) -> BaseException | None:
        """What ended the thread, once."""
        error, self._error = self._error, None
        return error

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # ------------------------------------------------------------------------------------ buckets of a running node

    def create_bucket(self, name: str, settings: BucketSettings | None = None, vbuckets: int | None = None) -> None:
        """Make a bucket, with all its vbuckets, while the node runs. From any thread but the node's own.

        Args:
            name: of the bucket.
            settings: those given to the node for that name if None.
            vbuckets: as many as the node's other buckets have if None.

        Raises:
            ConfigError: the name cannot be or is taken, or there are too many buckets.
            DcpstreamError: the node does not run. StoreError: the bucket's directory cannot be used.
        """
        count = self._vbuckets if vbuckets is None else vbuckets
        if not 1 <= count <= MAX_VBUCKETS:
            raise ConfigError("vbuckets", count, f"1 to {MAX_VBUCKETS}")
        chosen = self._settings_of(name) if settings is None else settings

        async def create(buckets: RunningBuckets) -> None:
            buckets.create(name, count, chosen, is_filled=True)

        self._order(create)

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket and all it holds; its connections are closed. From any thread but the node's own.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: the node does not run.
        """
        if self.engine is None or name not in self.engine.buckets:
            raise ConfigError("bucket", name, "a bucket of this node")

        async def drop(buckets: RunningBuckets) -> None:
            await buckets.drop(name)

        self._order(drop)

    def _order(self, what: Callable[[RunningBuckets], Coroutine[Any, Any, None]]) -> None:
        """Have something done to the buckets, on the node's loop."""
        loop, buckets, server = self._loop, self._buckets, self._server
        if not self.is_running or loop is None or buckets is None or server is None:
            raise DcpstreamError("the node does not run: start it first")

        async def turn() -> None:
            server.set_time()
            try:
                await what(buckets)
            finally:
                server.schedule_turn()

        asyncio.run_coroutine_threadsafe(turn(), loop).result(ORDER_TIMEOUT_S)

    # --------------------------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self.serve())
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread belongs to who started it
            self._error = error
        finally:
            self._is_ready.set()

    async def serve(self) -> None:
        """Serve on this loop until `stop` (from any thread) or cancellation."""
        from dcpstream.node.management import Management

        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with ExitStack() as cleanup:
            listeners = [
                cleanup.enter_context(listen(self.host, port, option))
                for port, option in zip(self._wanted_ports, ("port", "mgmt_port"), strict=True)
            ]
            self.port, self.mgmt_port = (listener.getsockname()[1] for listener in listeners)
            engine = self._open()
            server = KvServer(engine, SystemClock())
            management = Management(engine, server.schedule_turn)
            buckets = RunningBuckets(server, engine, self._open_store, self._discard, self._flush_interval_s)
            self._server, self._buckets = server, buckets
            try:
                await server.start(listeners[0])
                await management.start(listeners[1])
                buckets.start()
                logger.info("serving on %s:%d, management on port %d", self.host, self.port, self.mgmt_port)
                self._is_ready.set()
                await self._stopping.wait()
            finally:
                await management.stop()
                await server.stop()
                await buckets.stop(clean=not self._is_crashing)
                logger.info("stopped")

    def _open(self) -> Engine:
        """The engine with its buckets; if one cannot be opened, those that were are closed again."""
        clock, random = SystemClock(), SystemRandom()
        host = "" if is_loopback(self.host) or is_unspecified(self.host) else self.host
        node = NodeAddress(host, self.port, self.mgmt_port)
        uuid = f"{random.getrandbits(128):032x}"
        config = ClusterConfig([node], cluster_uuid=uuid, alternates=self._alternates)
        # Each start is an epoch of its own, so that clients take this configuration for newer than the last run's.
        config.epoch = clock.time_ns() // 1_000_000_000
        engine = new_engine(self._users, config, random, handle_dcp, dcp_stats)
        engine.set_time(clock.monotonic(), clock.time_ns())
        engine.started = engine.now
        with ExitStack() as opened:
            for name in self._bucket_names:
                store = self._open_store(name, self._vbuckets, self._settings_of(name))
                opened.callback(store.close, clean=False)
                engine.add_bucket(name, store, storage="disk" if store.is_durable else "memory")
            opened.pop_all()
        self.engine = engine
        return engine

    def _settings_of(self, name: str) -> BucketSettings:
        if isinstance(self._settings, BucketSettings):
            return self._settings
        return self._settings.get(name) or BucketSettings()

    def _open_store(self, name: str, vbuckets: int, settings: BucketSettings | None = None) -> BucketStore:
        check_bucket_name(name)
        if self._path is None:
            return MemoryBucketStore(vbuckets, settings)
        from dcpstream.store import DiskBucketStore

        return DiskBucketStore(self._path / name, vbuckets, settings)

    def _discard(self, name: str) -> None:
        if self._path is not None:
            shutil.rmtree(self._path / name, ignore_errors=True)


def check_bucket_name(name: str) -> None:
    """Refuse what cannot be a bucket's name.

    The name becomes a directory's, so this is also what keeps a bucket within the data directory.

    Raises:
        ConfigError: it cannot.
    """
    if not _BUCKET_NAME.fullmatch(name):
        raise ConfigError("bucket", name, "1 to 100 of A-Z a-z 0-9 _ - % . and not a dot at the start")


def is_loopback(host: str) -> bool:
    """Whether an address is only reachable from this machine."""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether an address stands for all of this machine's."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken or not allowed, or the address is not one of this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError("host", host, "a name or address of this machine") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", host, "a name or address of this machine") from error
        reason = "already in use" if error.errno == errno.EADDRINUSE else str(error)
        raise ConfigError(option, f"{port} ({reason})", "a free port, or 0 for any") from error
    return listener


def ready_content(node: Node, pid: int) -> str:
    """What a ready file says: the ports and the process."""
    return json.dumps({"kv": node.port, "mgmt": node.mgmt_port, "pid": pid})
