"""The management port and requests that are malformed: what is answered, and what of them gets into the log.

Nothing of a request may be logged, since its head and its body may hold passwords, and no request may be a fault of the
node. The requests are sent byte by byte, because HTTP libraries refuse to.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
import re
import socket
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote_from_bytes

import pytest

from dcpstream_node import Node
from dcpstream_node.engine import limit_log
from dcpstream_node.engine.limit_log import LOG_LINES_WITH_REASONS
from dcpstream_node.rest import Management
from dcpstream_node.rest.site import Route
from dcpstream_node.shell.limits import Limits
from tests.kit.engine import engine_of

TIMEOUT_S = 30.0
CANARY = "canary-c0ffee-swordfish"
TOKEN = base64.b64encode(b"Administrator:password").decode()
EVE = base64.b64encode(b"eve:password").decode()
CANARY_TOKEN = base64.b64encode(f"Administrator:{CANARY}".encode()).decode()
SECRETS = (CANARY, CANARY_TOKEN, CANARY_TOKEN[4:-4], CANARY.encode().hex())
LONGEST_LINE = 400


QUICK = Limits(http_header_s=0.5, http_body_s=0.5)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vbuckets=4, limits=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Node]:
    users = {"eve": {"password": "password", "roles": ["admin"]}}
    with Node(vbuckets=4, limits=Limits(http_header_s=0.5, http_body_s=0.1), users=users) as running:
        yield running


def send(node: Node, data: bytes) -> bytes:
    """The bytes that come back until the node closes, or until the head of an answer is there."""
    with socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(1 << 16):
                answer += chunk
                if b"/bs/" in data or b"treaming/" in data:
                    break  # it goes on without an end
        except ConnectionError:
            pass  # refused in the middle of a long request
        return answer


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"(?:^|\n)HTTP/1\.[01] (\d{3})", answer)]


def request(method: str, target: str | bytes, *headers: str | bytes, body: bytes = b"", token: str = TOKEN) -> bytes:
    """A request as it is told, with a login and a length unless they are among its headers."""
    path = target.encode("utf-8", "surrogateescape") if isinstance(target, str) else target
    lines = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in headers]
    names = {line.partition(b":")[0].strip().lower() for line in lines}
    if b"host" not in names:
        lines.insert(0, b"Host: 127.0.0.1")
    if b"authorization" not in names:
        lines.append(b"Authorization: Basic " + token.encode())
    if not names & {b"content-length", b"transfer-encoding"} and (body or method in ("POST", "PUT", "PATCH")):
        lines.append(b"Content-Length: %d" % len(body))
    return b"%s %s HTTP/1.1\r\n%s\r\nConnection: close\r\n\r\n%s" % (method.encode(), path, b"\r\n".join(lines), body)


FORM = "Content-Type: application/x-www-form-urlencoded"

MISFRAMED = {
    "a blank before the colon": f"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization : Basic {CANARY_TOKEN}\r\n\r\n",
    "no colon": f"GET /pools HTTP/1.1\r\nHost: a\r\nBasic {CANARY_TOKEN}\r\n\r\n",
    "a folded header": f"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Basic\r\n\t{CANARY_TOKEN}\x01\r\n\r\n",
    "a control character": f"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Basic \x01{CANARY_TOKEN}\r\n\r\n",
    "no header name": f"GET /pools HTTP/1.1\r\nHost: a\r\n: {CANARY_TOKEN}\r\n\r\n",
    "a short content length": "PUT /settings/rbac/users/local/a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
    f"{FORM}\r\n\r\npassword={CANARY}&roles=admin\r\n\r\n",
    "two content lengths": f"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: {CANARY}\r\n\r\n",
    "a content length that is none": f"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: {CANARY}\r\n\r\n",
    "a negative content length": f"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\npassword={CANARY}",
    "chunks that are none": f"POST /pools HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{CANARY}\r\n0\r\n",
    "a chunk of another length": f"POST /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {TOKEN}\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n2\r\npassword={CANARY}\r\n0\r\n\r\n",
    "an unknown transfer encoding": f"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {CANARY}\r\n\r\n{CANARY}",
    "a version that is none": f"GET /pools?password={CANARY} HTTP/9.{CANARY}\r\nHost: a\r\n\r\n",
    "a method that is none": f"{CANARY} /pools HTTP/1.1\r\nHost: a\r\n\r\n",
    "no HTTP": f"password={CANARY}\r\n\r\n",
    "a blank in the path": f"GET /pools?password= {CANARY} HTTP/1.1\r\nHost: a\r\n\r\n",
    "an absolute path that is none": f"GET http://[{CANARY}/pools HTTP/1.1\r\nHost: a\r\n\r\n",
    "a port that is none": f"GET http://a:{CANARY}@b:99999/pools HTTP/1.1\r\nHost: a\r\n\r\n",
    "a login in the path": f"GET http://Administrator:{CANARY}@[::1/pools HTTP/1.1\r\nHost: a\r\n\r\n",
    "a host that is none": f"GET /pools HTTP/1.1\r\nHost: {CANARY}:y:z\r\nAuthorization: Basic {CANARY_TOKEN}\r\n\r\n",
    "a port too high": f"GET /pools HTTP/1.1\r\nHost: {CANARY}:99999\r\nAuthorization: Basic {CANARY_TOKEN}\r\n\r\n",
    "a long header": f"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {CANARY_TOKEN * 1000}\r\n\r\n",
    "a long header's name": f"GET /pools HTTP/1.1\r\nHost: a\r\n{CANARY * 1000}: Basic\r\n\r\n",
    "a long path": f"GET /{CANARY * 1000} HTTP/1.1\r\nHost: a\r\n\r\n",
    "many headers": "GET /pools HTTP/1.1\r\nHost: a\r\n" + f"X-A: {CANARY}\r\n" * 5000 + "\r\n",
    "an expectation": f"POST /pools HTTP/1.1\r\nHost: a\r\nExpect: {CANARY}\r\nAuthorization: Basic {TOKEN}\r\n\r\n",
    "an upgrade": f"GET /pools HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: {CANARY}\r\n\r\n{CANARY}",
    "another site": f"POST /pools/default/buckets HTTP/1.1\r\nHost: a\r\nOrigin: http://{CANARY}\r\n"
    f"Authorization: Basic {CANARY_TOKEN}\r\nContent-Length: 0\r\n\r\n",
    "bytes in the login": f"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {CANARY_TOKEN}\udcff\r\n\r\n",
    "bytes in the path": f"GET /pools/\udcff\udcfe{CANARY}?password={CANARY} HTTP/1.1\r\nHost: a\r\n\r\n",
    "two hosts": f"GET /pools HTTP/1.1\r\nHost: a\r\nHost: {CANARY}\r\n\r\n",
}


def test_nothing_of_a_malformed_request_is_logged_or_repeated(
    node: Node,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limit_log, "LOG_PAUSE_S", 0.0)  # every line is wanted here
    with caplog.at_level(logging.DEBUG):
        for name, text in MISFRAMED.items():
            answer = send(node, text.encode("utf-8", "surrogateescape"))
            assert not [status for status in statuses(answer) if status >= 500], name
            assert not [secret for secret in SECRETS if secret.encode() in answer], name
        with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as connection:  # HTTP to the other port
            connection.sendall(MISFRAMED["no HTTP"].encode())
            while connection.recv(1 << 16):
                pass
    logged = "\n".join(f"{record.getMessage()} {record.exc_text} {record.exc_info}" for record in caplog.records)
    told = capfd.readouterr()
    for where, text in (("the log", logged), ("stderr", told.err), ("stdout", told.out)):
        assert not [secret for secret in SECRETS if secret in text], where
    assert "malformed" in logged or "well-formed" in logged, "that there was one is told"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert max(len(record.getMessage()) for record in caplog.records) < LONGEST_LINE


def test_who_does_not_log_in_cannot_fill_the_log(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(300):
            send(node, b"GET / HTTP/1.1\r\nA : B\r\n\r\n")
            with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n 123456")
                while connection.recv(1 << 16):
                    pass
        assert len(caplog.records) < 5 * LOG_LINES_WITH_REASONS
        node.stop()
    counts = [int(found) for found in re.findall(r"(\d+) more since the last line", caplog.text)]
    assert sum(counts) > 300, "what was not logged is counted"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Host: 127.0.0.1:99999", 400),
        ("Host: x:y:z", 400),
        ("Host: [::1", 400),
        ("Host: [zz::]:80", 400),
        ("Host: a b", 400),
        ("Host: a/b", 400),
        ("Host: a:", 200),
        ("Host:", 200),
        ("Host: [::1]:8091", 200),
        ("Host: my_node-1.example:8091", 200),
        ("X-No: host", 200),
    ],
)
@pytest.mark.parametrize("path", ["/pools/default", "/pools/default/b/default", "/pools/default/nodeServices"])
def test_a_host_that_cannot_be_is_the_clients_fault(shared_node: Node, head: str, status: int, path: str) -> None:
    assert statuses(send(shared_node, request("GET", path, head))) == [status]


BODIES = {
    "no gzip": (b"no gzip at all", "Content-Encoding: gzip", 400),
    "half of gzip": (gzip.compress(b"name=made")[:-9], "Content-Encoding: gzip", 400),
    "more than gzip": (gzip.compress(b"name=made") + b"more", "Content-Encoding: gzip", 400),
    "an unknown compression": (b"name=made", "Content-Encoding: br", 415),
    "no deflate": (b"\xff\xff", "Content-Encoding: deflate", 400),
    "a bomb": (gzip.compress(bytes(64 << 20)), "Content-Encoding: gzip", 413),
    "gzip": (gzip.compress(b"name=made"), "Content-Encoding: gzip", 200),
    "no UTF-8": (b"name=\xff\xfe", "X-A: b", 400),
    "escapes of no UTF-8": (b"name=%ff%fe", "X-A: b", 400),
    "half a character": (b"name=%ed%a0%80", "X-A: b", 400),
    "a charset that is none": (b"name=made", f"{FORM}; charset=nonsense", 200),
    "a charset that is no text": (b"name=made", f"{FORM}; charset=zlib", 200),
    "fields without number": (b"&".join(b"a%d=1" % index for index in range(5000)), "X-A: b", 400),
    "a form of parts": (b"--x\r\nno part", "Content-Type: multipart/form-data; boundary=x", 400),
    "a form of parts without boundary": (b"--x\r\nno part", "Content-Type: multipart/form-data", 400),
    "a number without end": (b"name=made&maxTTL=" + b"1" * 5000, "X-A: b", 400),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_read_is_the_clients_fault(node: Node, name: str) -> None:
    body, header, status = BODIES[name]
    headers = [header] if "Content-Type" in header else [FORM, header]
    assert statuses(send(node, request("POST", "/pools/default/buckets/default/scopes", *headers, body=body))) == [
        status
    ]


# ------------------------------------------------------------------------------------------------------- at random


def routes() -> list[Route]:
    async def make() -> Management:
        return Management(engine_of(), cast("Any", None), lambda: None)

    return asyncio.run(make()).routes


TEXTS = [
    *("", " ", "0", "1", "-1", "+1", "1.5", "1e999", "9" * 19, "9" * 5000, "0x10", "٣", "²", "NaN", "null", "true"),
    *(
        "default",
        "_default",
        "Administrator",
        "a",
        "a" * 300,
        "a b",
        "a,b",
        "[*]",
        "admin",
        "admin[",
        "data_reader[a:b:c:d]",
    ),
    *(
        "data_reader[]",
        "é",
        "😀",
        "\udcff",
        "\udced\udca0\udc80",
        "\0",
        "\n",
        "{",
        "%",
        "%zz",
        "..",
        "../..",
        "cluster!read",
    ),
    *("cluster.bucket[.].data.docs!read", "cluster.bucket[a:b:c:d]!read", "couchbase", "ephemeral", "magma", "false"),
]
FIELDS = (
    *(
        "name",
        "maxTTL",
        "history",
        "password",
        "roles",
        "groups",
        "bucketType",
        "ramQuota",
        "ramQuotaMB",
        "replicaNumber",
    ),
    *(
        "evictionPolicy",
        "flushEnabled",
        "compressionMode",
        "durabilityMinLevel",
        "conflictResolutionType",
        "numVBuckets",
    ),
    *("storageBackend", "historyRetentionSeconds", "historyRetentionBytes", "historyRetentionCollectionDefault"),
    *(
        "clusterName",
        "memoryQuota",
        "description",
        "ldap_group_ref",
        "validOnUid",
        "just_validate",
        "timeout",
        "scopes",
    ),
)
HEADERS = (
    *("Host: a:b:c", "Host: 1.2.3.4:70000", "Host: [::", "Content-Encoding: gzip", "Content-Encoding: deflate"),
    *(
        "Content-Encoding: br",
        "Content-Encoding: zstd",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
    ),
    *(
        "Expect: 100-continue",
        "Expect: 200-ok",
        "Accept-Encoding: \udcff",
        "Cookie: " + "a=b;" * 1000,
        "Range: bytes=a-b",
    ),
    *("Authorization: Basic", "Authorization: Basic \udcff", "Authorization: Basic ٣٣٣", "Authorization: Basic !!!!"),
    *(
        "Authorization: Bearer x",
        "Authorization: Basic /////w==",
        "Content-Type: \udcff",
        "Content-Type: a;b;c=",
        "Origin: \udcff",
    ),
    *(
        "Content-Type: application/json",
        "Content-Length: 5",
        "Connection: upgrade, close",
        "Origin: null",
        "X: " + "x" * 7000,
    ),
    *("If-None-Match: *", "Sec-Fetch-Site: cross-site", "Content-Type: multipart/form-data; boundary=b"),
)
ROUNDS = 8


class Hostile:
    """Requests for all pages, each with something that is wrong or odd."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        choose = self.random.choice
        return choose(TEXTS) if self.random.random() < 0.85 else "".join(choose(TEXTS)[:20] for _ in range(3))

    def escaped(self) -> bytes:
        raw = self.text().encode("utf-8", "surrogateescape")
        if self.random.random() < 0.8:
            return quote_from_bytes(raw, safe="").encode()
        return raw.translate(None, b" \r\n\0")

    def json(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 4 else 5)
        if kind < 5:
            return (None, True, -(10**30), 1.5e300, self.text())[kind]
        if kind == 5:
            return [self.json(depth + 1) for _ in range(self.random.randrange(4))]
        names = ("scopes", "name", "collections", "maxTTL", "history", "uid", "")
        return {self.random.choice(names): self.json(depth + 1) for _ in range(self.random.randrange(4))}

    def manifest(self) -> Any:
        """Nearly right, so that what is behind the first check is reached."""
        item = {"name": self.text(), self.random.choice(FIELDS): self.json(3)}
        return {
            "scopes": [{"name": self.random.choice(("_default", self.text())), "collections": [item, self.json(3)]}]
        }

    def body(self) -> bytes:
        kind = self.random.randrange(6)
        if kind < 3:
            fields = [(self.random.choice(FIELDS), self.escaped()) for _ in range(self.random.randrange(8))]
            return b"&".join(b"%s=%s" % (name.encode(), value) for name, value in fields)
        if kind == 3:
            return json.dumps(self.json() if self.random.random() < 0.5 else self.manifest()).encode()
        return self.random.choice(
            (b"[" * 100_000, b'{"a":' * 5000, b"\xff\xfe\x00", b"1" * 5000, b"", gzip.compress(b"a=b"))
        )

    def of(self, route: Route) -> bytes:
        path = re.sub(
            r"\{\w+\}", lambda _: self.escaped().replace(b"/", b"").decode("utf-8", "surrogateescape"), route.path
        )
        target = path.encode("utf-8", "surrogateescape")
        if self.random.random() < 0.3:
            target += b"?" + self.random.choice(FIELDS).encode() + b"=" + self.escaped()
        headers: list[str | bytes] = []
        if self.random.random() < 0.5:
            headers.append(self.random.choice(HEADERS))
        body = self.body() if route.method != "GET" or self.random.random() < 0.2 else b""
        if "ensureManifest" in route.path:  # else it may wait for what never comes
            body = b"timeout=" + self.random.choice((b"0", b"1", b"1" * 5000, b"-1"))
        if body and not any(str(item).startswith("Content-Type") for item in headers):
            headers.append(FORM)
        if body and "Transfer-Encoding: chunked" in headers:
            body = self.random.choice((b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), body))
        method = route.method if self.random.random() < 0.95 else self.random.choice(("HEAD", "OPTIONS", "TRACE", "X"))
        # A password that is changed by chance must not be the one that all others log in with.
        return request(method, target, *headers, body=body, token=EVE if "changePassword" in route.path else TOKEN)


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{route.method} {route.path}")
def test_no_request_is_a_fault_of_the_node(
    shared_node: Node, route: Route, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = Hostile(sum(f"{route.method} {route.path}".encode()))
    allowed = {504} if "ensureManifest" in route.path else {503} if route.path == "/health" else set()
    for turn in range(ROUNDS):
        data = hostile.of(route)
        answer = send(shared_node, data)
        wrong = [status for status in statuses(answer) if status >= 500 and status not in allowed]
        assert not wrong, (turn, data[:2000], answer[:500])
        failed = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert not failed, (turn, data[:2000], failed)
    assert "Traceback" not in capfd.readouterr().err
    assert statuses(send(shared_node, request("GET", "/pools"))) == [200], "it goes on"
