"""The user of an HTTP request, and the rights that a page needs.

Basic authentication against the node's users, and over TLS tokens of the configured issuers (Bearer). A correct
password is remembered as a keyed hash, so that only the first of a client's requests costs the derivation of a key.

Source: Couchbase Server REST API: 401 without a body, 403 with the missing permissions; both come before a 404.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Iterable, Mapping

from aiohttp import web

from dcpstream_node.engine import Bucket, Engine, User
from dcpstream_node.engine.access.roles import SERVER_PERMISSIONS
from dcpstream_node.rest.site import ANYBODY, LOGIN, USER, Handler, Route, answer

logger = logging.getLogger(__name__)

REALM = 'Basic realm="Couchbase Server Admin / REST"'
MAX_REMEMBERED = 1000
"""Largest number of remembered logins: the largest number of users."""
MAX_AUTHORIZATION_LENGTH = 4096
"""Largest header: longer than any name and password."""
SECRET_BITS = 256


class Access:
    """Authenticates requests, and checks the rights of their users."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._secret = engine.random.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
        self._remembered: dict[bytes, object] = {}

    def user_of(self, authorization: str, address: str, *, is_secure: bool = False) -> User | None:
        """The user that a header names; None if password or token is wrong, or too many refusals of its address wait.

        Args:
            is_secure: whether nobody on the way can read the request; only then are tokens taken.
        """
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() == "bearer" and is_secure and self._engine.issuers:
            return self._user_of_token(encoded.strip(), address)
        if scheme.lower() != "basic" or len(authorization) > MAX_AUTHORIZATION_LENGTH:
            return None
        try:
            name, separator, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        if not separator:
            return None
        users = self._engine.users
        proof = hmac.digest(self._secret, f"{name}:{password}".encode(), hashlib.sha256)
        credentials = users.credentials(name)
        if credentials is not None and self._remembered.get(proof) is credentials:
            return users.find(name)
        if self._engine.logins.is_full(address):
            return None
        user = users.authenticate(name, password.encode())
        if user is not None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[proof] = user.credentials
        return user

    def _user_of_token(self, token: str, address: str) -> User | None:
        """The user that a token names; the server of HTTP bounds its length."""
        if self._engine.logins.is_full(address):
            return None
        found = self._engine.token_user(token, address)
        return None if found is None else found[0]

    def guarded(self, route: Route) -> Handler:
        """A route's handler behind the check of its right."""
        if route.needs == ANYBODY:
            return route.handler

        async def handler(request: web.Request) -> web.StreamResponse:
            user = request.get(USER)
            assert user is not None, "the middleware has logged in the user"
            if not allows(user, route.needs, request.match_info):
                return forbidden(route.needs, request.match_info.get("bucket", ""))
            return await route.handler(request)

        return handler


def allows(user: User, right: str, place: Mapping[str, str]) -> bool:
    """Whether a user has a right at the place that a path names."""
    if right == LOGIN:
        return True
    bucket = place.get("bucket", "")
    if right == "pools.read" or (right == "bucket.read" and user.may_use(bucket)):
        return True
    return user.may(right, bucket, place.get("scope", ""), place.get("collection", ""))


def visible_buckets(user: User, engine: Engine) -> list[Bucket]:
    """The buckets whose description a user may read."""
    return [bucket for bucket in engine.buckets.values() if allows(user, "bucket.read", {"bucket": bucket.name})]


_PERMISSION = re.compile(r"cluster(?:\.(\w+(?:\.\w+)*))?!(\w+)")
_BUCKET_PERMISSION = re.compile(r"cluster\.(?:bucket|scope|collection)\[([^\]]{1,400})\](?:\.(\w+(?:\.\w+)*))?!(\w+)")
ANY_BUCKET = "."
"""In place of a bucket's name in a permission: any bucket."""


def has_permission(user: User, text: str, buckets: Iterable[str]) -> bool:
    """Whether a user has a permission as the server writes it, `cluster.bucket[travel].data.docs!read`.

    Only administrators have permissions without a meaning here (queries, indexes, …).

    Args:
        buckets: the names of all buckets.
    """
    found = _BUCKET_PERMISSION.fullmatch(text)
    if found is not None:
        right = SERVER_PERMISSIONS["bucket"].get(f"{found[2] or ''}!{found[3]}")
        bucket, *within = found[1].split(":")
        if right is None:
            return user.is_admin
        place = ("bucket", "scope", "collection")
        return any(
            allows(user, right, dict(zip(place, (name, *within), strict=False)))
            for name in (buckets if bucket == ANY_BUCKET else (bucket,))
        )
    found = _PERMISSION.fullmatch(text)
    right = SERVER_PERMISSIONS["cluster"].get(f"{found[1] or ''}!{found[2]}") if found is not None else None
    return user.is_admin if right is None else allows(user, right, {})


def forbidden(right: str, bucket: str = "") -> web.Response:
    """403, in the server's shape."""
    what, _, action = right.rpartition(".")
    where = f"bucket[{bucket}]" if bucket and what.startswith("bucket") else what
    permission = f"cluster.{where}!{action}" if what not in ("", "cluster") else f"cluster!{action}"
    content = {"message": "Forbidden. User needs the following permissions", "permissions": [permission]}
    return answer(content, 403)


def login_needed() -> web.Response:
    """401."""
    return web.Response(status=401, headers={"WWW-Authenticate": REALM})
