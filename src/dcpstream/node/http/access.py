"""Who asks for a page, and whether they may.

Basic authentication against the node's users. A password that was right is remembered as a keyed hash, so that only
the first of a client's many requests costs the derivation of a key.

Source: Couchbase Server REST API: 401 without a body, 403 with the permissions that are missing, both before it is told
whether a page is there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging

from aiohttp import web

from dcpstream.node.engine import Engine, User
from dcpstream.node.http.page import ANYBODY, LOGIN, USER, Handler, Route, answer

logger = logging.getLogger(__name__)

REALM = 'Basic realm="Couchbase Server Admin / REST"'
MAX_REMEMBERED = 1000
"""Logins that are remembered: as many as there can be users."""
MAX_AUTHORIZATION_LENGTH = 4096
"""Of the header: longer than any name and password."""
SECRET_BITS = 256


class Access:
    """Lets requests in, or not.

    Args:
        engine: its users, and chance.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._secret = engine.random.getrandbits(SECRET_BITS).to_bytes(SECRET_BITS // 8, "big")
        self._remembered: dict[bytes, object] = {}

    def user_of(self, authorization: str) -> User | None:
        """Whom a header names, if the password is right."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic" or len(authorization) > MAX_AUTHORIZATION_LENGTH:
            return None
        try:
            name, separator, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if not separator:
            return None
        users = self._engine.users
        proof = hmac.digest(self._secret, f"{name}:{password}".encode(), hashlib.sha256)
        credentials = users.credentials(name)
        if credentials is not None and self._remembered.get(proof) is credentials:
            return users.find(name)
        user = users.authenticate(name, password.encode())
        if user is not None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[proof] = user.credentials
        return user

    def guarded(self, route: Route) -> Handler:
        """A route's handler, for those alone who may."""
        if route.needs == ANYBODY:
            return route.handler

        async def handler(request: web.Request) -> web.StreamResponse:
            user = request.get(USER)
            assert user is not None, "who did not log in does not come here"
            if not allows(user, route.needs, request.match_info):
                return forbidden(route.needs, request.match_info.get("bucket", ""))
            return await route.handler(request)

        return handler


def allows(user: User, right: str, place: dict[str, str] | web.UrlMappingMatchInfo) -> bool:
    """Whether a user has a right at the place that a path names."""
    if right == LOGIN:
        return True
    bucket = place.get("bucket", "")
    if right == "pools.read" or (right == "bucket.read" and user.may_use(bucket)):
        return True
    return user.may(right, bucket, place.get("scope", ""))


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
