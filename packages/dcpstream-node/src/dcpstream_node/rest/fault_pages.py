"""Pages of faults on demand. No server has them, so their paths begin with a name of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from dcpstream.errors import ConfigError
from dcpstream_node.rest.site import NOT_FOUND, Route, answer, done, fault, form_of, note, whole_number

if TYPE_CHECKING:
    from dcpstream_node.fault_host import FaultHost

FAULTS = "/_dcpstream/faults"
MAX_NUMBER = 1 << 53


class FaultPages:
    """The pages of faults.

    Args:
        host: carries them out; None while the node does not run.
    """

    def __init__(self, host: Callable[[], FaultHost | None]) -> None:
        self._found = host

    def routes(self) -> list[Route]:
        """The pages."""
        write = "cluster.write"
        inject = "let something go wrong: `kind` and its fields; answers `id`, 0 if it is over with that"
        return [
            Route("GET", FAULTS, self._list, write, "the faults that last, with `id` and `hits`"),
            Route("POST", FAULTS, self._inject, write, inject),
            Route("DELETE", FAULTS, self._lift_all, write, "end all faults"),
            Route("DELETE", FAULTS + "/{number}", self._lift, write, "end one"),
        ]

    def _host(self) -> FaultHost:
        host = self._found()
        assert host is not None, "pages are served while the node runs"
        return host

    async def _list(self, _: web.Request) -> web.Response:
        return answer(self._host().describe())

    async def _inject(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        kind = form.pop("kind", "")
        try:
            number = await self._host().inject(kind, form)
        except ConfigError as error:
            return fault(400, str(error))
        note(request, "injected a fault", kind)
        return answer({"id": number})

    async def _lift_all(self, request: web.Request) -> web.Response:
        self._host().lift()
        note(request, "lifted all faults")
        return done()

    async def _lift(self, request: web.Request) -> web.Response:
        number = whole_number(request.match_info["number"], 1, MAX_NUMBER)
        if number is None or all(each["id"] != number for each in self._host().describe()):
            return web.Response(status=404, text=NOT_FOUND)
        self._host().lift(number)
        note(request, "lifted fault", str(number))
        return done()
