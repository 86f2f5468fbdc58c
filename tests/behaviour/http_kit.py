"""A client of the management port."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dcpstream.node import Node
from tools.patience import patient

TIMEOUT_S = patient(20.0)


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    node: Node,
    method: str,
    path: str,
    form: dict[str, str] | None = None,
    *,
    user: str = "Administrator",
    password: str = "password",
    body: str | bytes | None = None,
) -> Answer:
    """One request, by somebody or (with an empty name) by nobody."""
    connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    headers = {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    if form is not None:
        body = urlencode(form)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
    finally:
        connection.close()
