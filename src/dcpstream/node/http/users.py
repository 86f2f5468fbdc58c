"""Users over HTTP."""

from __future__ import annotations

from aiohttp import web

from dcpstream.node.http.page import LOGIN, USER, Route, Site, answer


class UserPages:
    """The pages of users.

    Args:
        site: the node.
    """

    def __init__(self, site: Site) -> None:
        self._engine = site.engine

    def routes(self) -> list[Route]:
        """The pages."""
        return [Route("GET", "/whoami", self._whoami, LOGIN, "who is logged in")]

    async def _whoami(self, request: web.Request) -> web.Response:
        return answer({"id": request[USER].name, "domain": "local", "roles": [{"role": "admin"}]})
