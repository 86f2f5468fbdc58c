"""The management port of a node as commands use it: REST calls that both our node and a Couchbase server have."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import click

from dcpstream.cli.connection_options import LOGIN_OPTIONS, password_of, with_options
from dcpstream.cli.output import json_option
from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost, DcpstreamError, TlsError

DEFAULT_CLUSTER = "http://127.0.0.1:8091"
REQUEST_TIMEOUT_S = 90.0
"""Longest wait for one answer: a hard failover is answered when it is through."""
_OK = range(200, 300)
_REFUSED = (401, 403)

_F = TypeVar("_F", bound=Callable[..., Any])
_M = TypeVar("_M", bound="Management")


class Management:
    """The management port of one node.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`.
        username, password: of an administrator.
        ca_file: PEM file of the authority that signed the certificate; None: those of the system.

    Raises: ConfigError: it is no such URL.
    """

    def __init__(self, url: str, username: str, password: str, ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._scheme, self._host = parts.scheme, parts.hostname or ""
            self._port = parts.port or (18091 if parts.scheme == "https" else 8091)
        except ValueError:
            self._host = self._scheme = ""
        if self._scheme not in ("http", "https") or not self._host:
            raise ConfigError("--cluster", url, "http://HOST:PORT or https://HOST:PORT, the management port of a node")
        self._ca_file = ca_file
        self.username, self.password = username, password
        login = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}

    @property
    def url(self) -> str:
        """The management port that is asked."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    def get(self, path: str) -> Any:
        """The JSON of a page. Raises: as `post`."""
        return json.loads(self._request("GET", path, None))

    def post(self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]]) -> bytes:
        """Send a form.

        Raises:
            ConnectionLost: the node cannot be reached. AuthenticationFailed: it refuses the user.
            DcpstreamError: it refuses the request; the message has its words.
        """
        return self._request("POST", path, urlencode(form))

    def put(self, path: str, form: Mapping[str, str]) -> bytes:
        """Send a form that replaces what is at the path. Raises: as `post`."""
        return self._request("PUT", path, urlencode(form))

    def delete(self, path: str) -> bytes:
        """Delete what is at the path. Raises: as `post`."""
        return self._request("DELETE", path, None)

    def _request(self, method: str, path: str, body: str | None) -> bytes:
        if self._scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    "--trust",
                    self._ca_file,
                    "a PEM file of certificates",
                    message=f"--trust: {self._ca_file} cannot be read: {error.strerror or error}. Give a PEM file",
                ) from error
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=REQUEST_TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_TIMEOUT_S)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except ssl.SSLError as error:
            raise _tls_error(self.url, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise _unreached(self.url, error) from error
        finally:
            connection.close()
        if answer.status in _REFUSED:
            raise AuthenticationFailed(
                f"{self.url} refuses {method} {path} ({answer.status}): check --user and --password, and the roles"
            )
        if answer.status not in _OK:
            raise DcpstreamError(f"{self.url} refused {method} {path} ({answer.status}): {_said(content)}")
        return content


def path_of(*names: str) -> str:
    """A path of names; each is escaped."""
    return "".join("/" + quote(name, safe="") for name in names)


def _tls_error(url: str, error: ssl.SSLError) -> TlsError:
    """The error for a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = (error.verify_message or str(error)).rstrip(".")
        text = f"the certificate of {url} is not trusted: {why}. Give the certificate of its authority with --trust"
    else:
        text = f"{url} does not speak TLS: is this the port with TLS (18091)? Without TLS the URL begins with http://"
    return TlsError(text, cause=error)


def _unreached(url: str, error: OSError | http.client.HTTPException) -> ConnectionLost:
    """The error for a port that does not answer, or not in HTTP."""
    if isinstance(error, http.client.HTTPException):
        secured = "" if url.startswith("https") else ", or is it the one with TLS (https://HOST:18091)"
        text = f"{url} does not answer in HTTP: is this the management port (8091){secured}?"
    else:
        text = (
            f"{url} cannot be reached: {error.strerror or error}. Is the node running, and is this its management port?"
        )
    return ConnectionLost(text, cause=error)


def _said(content: bytes) -> str:
    """The error in an answer, in the words of the server."""
    text = content.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, list):
        return "; ".join(map(str, found))
    if not isinstance(found, dict):
        return found if isinstance(found, str) else text
    if "mismatch" in found:
        return "the nodes of the cluster have changed meanwhile; try again"
    errors = found.get("errors", found)
    return "; ".join(f"{name}: {why}" if name != "_" else str(why) for name, why in errors.items())


def management_options(kind: type[_M]) -> Callable[[_F], _F]:
    """The options for a node's address, the user, and --json; the command gets `cluster`, a `kind`, and `as_json`."""
    options = (
        click.option(
            "-c",
            "--cluster",
            "cluster",
            default=DEFAULT_CLUSTER,
            show_default=True,
            help="Management port of any node.",
        ),
        *LOGIN_OPTIONS,
        click.option(
            "--trust", metavar="PEM", help="With https://: file of the authorities to trust.  [default: the system's]"
        ),
        json_option(),
    )

    def decorate(command: _F) -> _F:
        @wraps(command)
        def call(*, cluster: str, username: str, trust: str | None, **others: Any) -> Any:
            from dcpstream.client.settings.secrets import current

            password = current(password_of(others))
            del others["password"]
            return command(cluster=kind(cluster, username, password, trust), **others)

        return cast("_F", with_options(call, options))

    return decorate
