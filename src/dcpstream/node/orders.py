"""What can be ordered of a node from code while it runs: buckets, scopes and collections, users.

Orders come from any thread and are carried out on the node's own, where they come between two turns of its loop; who
gives one waits until it is done. The node's own thread must not give any: it would wait for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream.node.arguments import check_kinds, check_vbuckets
from dcpstream.node.buckets import RunningBuckets
from dcpstream.node.engine import Bucket, Engine, Users
from dcpstream.node.engine.bucket.collections import ManifestError
from dcpstream.node.engine.bucket.manifests import ManifestEditor, Wanted
from dcpstream.node.shell.server import KvServer

ORDER_TIMEOUT_S = 60.0
"""Longest wait for an order to be carried out: deleting the files of a large bucket takes some seconds."""


class NodeOrders:
    """The orders of a node; `Node` adds where they are carried out.

    Attributes:
        engine: what is ordered about, None before the first start.
    """

    engine: Engine | None
    _vbuckets: int
    _settings: BucketSettings | Mapping[str, BucketSettings]
    _users: Users
    _loop: asyncio.AbstractEventLoop | None
    _server: KvServer | None
    _buckets: RunningBuckets | None

    @property
    def is_running(self) -> bool:
        """Whether the node serves."""
        raise NotImplementedError

    def _settings_of(self, name: str) -> BucketSettings:
        if isinstance(self._settings, BucketSettings):
            return self._settings
        return self._settings.get(name) or BucketSettings()

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
        check_vbuckets(count)
        check_kinds(settings)
        chosen = self._settings_of(name) if settings is None else settings

        async def create(buckets: RunningBuckets) -> None:
            await buckets.gone(name)
            buckets.create(name, count, chosen, is_filled=True)

        self._order(create)

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket and all it holds; its connections are closed. From any thread but the node's own.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: the node does not run.
        """

        async def drop(buckets: RunningBuckets) -> None:
            await buckets.drop(self._bucket(name).name)

        self._order(drop)

    def flush_bucket(self, name: str) -> None:
        """Empty a bucket, whether or not its settings allow that over HTTP. From any thread but the node's own.

        Streams out of it end, and those who resume are rolled back to the beginning; collections stay.

        Raises:
            ConfigError: there is no such bucket. DcpstreamError: the node does not run.
            StoreError: it could not be made durable.
        """

        async def flush(buckets: RunningBuckets) -> None:
            await buckets.flush(self._bucket(name).name)

        self._order(flush)

    def change_bucket(self, name: str, settings: BucketSettings) -> None:
        """Give a bucket other settings, durably. From any thread but the node's own.

        Raises:
            ConfigError: there is no such bucket, or something that cannot be changed is to be.
            DcpstreamError: the node does not run. StoreError: it could not be made durable.
        """

        async def change(_: RunningBuckets) -> None:
            bucket = self._bucket(name)
            for field in ("is_ephemeral", "conflict_resolution"):
                if getattr(settings, field) != getattr(bucket.settings, field):
                    raise ConfigError(field, getattr(settings, field), "what it was made with; it cannot be changed")
            assert self.engine is not None
            self.engine.change_settings(bucket, settings)

        self._order(change)

    def set_collections(self, name: str, scopes: Mapping[str, Mapping[str, int] | Sequence[str]]) -> None:
        """Give a bucket these scopes and collections; those that are missing are dropped with all they hold.

        From any thread but the node's own. What stays keeps its id; `_default` scope and collection always stay.

        Args:
            name: of the bucket.
            scopes: scope → its collections: names, or `{name: longest life of a document in seconds, 0 for any}`.

        Raises:
            ConfigError: no such bucket, or a name that cannot be. DcpstreamError: the node does not run.
        """

        async def change(_: RunningBuckets) -> None:
            bucket = self._bucket(name)
            assert self.engine is not None
            wanted = {
                scope: {item: Wanted(items[item] if isinstance(items, Mapping) else None) for item in items}
                for scope, items in scopes.items()
            }
            editor = ManifestEditor(bucket.manifest, history=bucket.settings.keeps_history)
            try:
                manifest = editor.replace_all(wanted, keeps_default_collection=True)
            except ManifestError as error:
                raise ConfigError("scopes", scopes, str(error)) from error
            self.engine.set_manifest(bucket, manifest)

        self._order(change)

    def add_user(self, name: str, password: str, roles: Iterable[str] = ("admin",), display_name: str = "") -> None:
        """Make a user, or change one. From any thread but the node's own.

        Args:
            name: as it logs in.
            password: from the next login on.
            roles: all that the user has from now on, as the server writes them: `data_reader[travel:inventory]`.
            display_name: for people.

        Raises:
            ConfigError: a name, password or role that cannot be. DcpstreamError: the node does not run.
        """

        async def add(_: RunningBuckets) -> None:
            self._users.put(name, password, roles, display_name)

        self._order(add)

    def remove_user(self, name: str) -> None:
        """Take a user away, also on connections that are open. From any thread but the node's own.

        Raises:
            ConfigError: there is none, or the node was started with it. DcpstreamError: the node does not run.
        """

        async def remove(_: RunningBuckets) -> None:
            if not self._users.remove(name):
                raise ConfigError("user", name, "a user of this node")

        self._order(remove)

    def _bucket(self, name: str) -> Bucket:
        bucket = self.engine.buckets.get(name) if self.engine is not None else None
        if bucket is None:
            raise ConfigError("bucket", name, "a bucket of this node")
        return bucket

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
