"""A client of the management port."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dcpstream_node import Node
from tests.kit.waiting import TIMEOUT_S


class Answer(NamedTuple):
    """The answer to a request."""

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
    form: Mapping[str, str] | str | None = None,
    *,
    user: str = "Administrator",
    password: str = "password",
    body: str | bytes | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request.

    Args:
        form: the fields of a form, or a form as it is encoded.
        user: the name of the login; an empty name sends none.
        body: instead of a form.
        context: for TLS; None asks the port without.
    """
    if context is not None:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "localhost", node.mgmt_tls_port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", node.mgmt_port, timeout=TIMEOUT_S)
    headers = {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    if form is not None:
        body = form if isinstance(form, str) else urlencode(form)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
    finally:
        connection.close()
