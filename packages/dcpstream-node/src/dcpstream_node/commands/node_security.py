"""Options of `dcpstream node` for logins, encryption, and limits of clients."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dcpstream.cli.connection_options import with_options
from dcpstream.client.settings.secrets import SecretFile
from dcpstream.errors import ConfigError
from dcpstream.runtime.descriptors import OTHER_DESCRIPTORS, allow_descriptors
from dcpstream_node.commands import node_defaults
from dcpstream_node.shell.limits import Limits

logger = logging.getLogger(__name__)

_FILE = click.Path(path_type=Path)
MAX_SECRET_JSON_BYTES = 1024 * 1024
"""Largest file of users, or of issuers of tokens; a thousand users take a tenth of it."""
_PORT = click.IntRange(0, 65535)

_OPTIONS = (
    click.option(
        "--password-file",
        type=_FILE,
        help="File whose first line is the administrator's password, instead of --password, which `ps` shows.",
    ),
    click.option(
        "--password-iterations",
        default=node_defaults.PASSWORD_ITERATIONS,
        show_default=True,
        type=click.IntRange(node_defaults.PASSWORD_ITERATIONS, node_defaults.PASSWORD_ITERATIONS_MAX),
        help="Rounds of PBKDF2 for passwords: more rounds make attacks on stolen hashes, and each login, slower.",
    ),
    click.option(
        "--plain",
        type=click.Choice(node_defaults.PLAIN_POLICIES),
        help="When passwords in plain text are accepted: always, or over TLS only.  [default: always on loopback]",
    ),
    click.option(
        "--jwt",
        type=_FILE,
        help="JSON file of the issuers whose tokens log in external users, as for PUT /settings/jwt of the server; "
        "needs --tls and --release 8.0.",
    ),
    click.option(
        "--tls", "is_tls", is_flag=True, help="Open TLS ports, too; without --tls-cert the node makes a certificate."
    ),
    click.option("--tls-port", default=11207, show_default=True, type=_PORT, help="KV over TLS; 0: any free port."),
    click.option("--mgmt-tls-port", default=18091, show_default=True, type=_PORT, help="HTTPS; 0: any free port."),
    click.option("--tls-cert", type=_FILE, help="Certificate and its chain, PEM, instead of one that the node makes."),
    click.option("--tls-key", type=_FILE, help="Its key, PEM, without a password."),
    click.option("--tls-name", "tls_names", multiple=True, help="A further name in the node's certificate."),
    click.option("--tls-ca-out", type=_FILE, help="File for the authority of the certificate that the node makes."),
    click.option(
        "--tls-client-auth",
        type=click.Choice(node_defaults.CLIENT_AUTH),
        default="none",
        show_default=True,
        help="Whether clients' certificates log in their users.",
    ),
    click.option("--tls-client-ca", type=_FILE, help="Authority of client certificates, PEM; else the node's own."),
    click.option(
        "--tls-user-from",
        type=click.Choice(node_defaults.USER_FROM),
        default="subject.cn",
        show_default=True,
        help="Which part of the certificate names the user.",
    ),
    click.option("--tls-user-prefix", default="", help="A prefix of that part that is removed."),
    click.option("--tls-user-delimiters", default="", help="Characters that end the name."),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=VALUE",
        help=f"A limit of clients: {', '.join(each.name for each in fields(Limits))}. May be repeated.",
    ),
)


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    return with_options(command, _OPTIONS)


def security_arguments(given: Mapping[str, Any], password: str) -> dict[str, Any]:
    """The arguments of `Node` that the options stand for.

    Args:
        given: the options' values, by name.
        password: that of --password, used without --password-file.

    Raises:
        ConfigError: options that exclude each other, or an unreadable file.
    """
    from dcpstream_node.shell.tls import TlsSettings

    is_tls = given["is_tls"] or given["tls_cert"] is not None
    needless = [name for name in ("tls_key", "tls_names", "tls_ca_out", "tls_client_ca") if given[name]]
    if not is_tls and (needless or given["tls_client_auth"] != "none"):
        option = needless[0].replace("_", "-").rstrip("s") if needless else "tls-client-auth"
        raise ConfigError(f"--{option}", "given without --tls", "--tls with it", message=f"--{option} needs --tls")
    tls = None
    if is_tls:
        tls = TlsSettings(
            certificate=given["tls_cert"],
            key=given["tls_key"],
            client_ca=given["tls_client_ca"],
            client_auth=given["tls_client_auth"],
            user_from=given["tls_user_from"],
            user_prefix=given["tls_user_prefix"],
            user_delimiters=given["tls_user_delimiters"],
            port=given["tls_port"],
            mgmt_port=given["mgmt_tls_port"],
            names=tuple(given["tls_names"]),
            ca_out=given["tls_ca_out"],
        )
    if given["password_file"] is not None:
        path = given["password_file"]
        warn_of_readers(path, "--password-file")
        password = SecretFile(str(path), "--password-file")()
    return {
        "password": password,
        "password_iterations": given["password_iterations"],
        "plain": given["plain"],
        "jwt": read_secret_json(given["jwt"], "--jwt") if given["jwt"] is not None else None,
        "tls": tls,
        "limits": Limits.parse(given["limits"]),
    }


def allow_connections(limits: Limits) -> None:
    """Let this process have as many connections open as `limits` allow; log a warning if the system does not."""
    connections = limits.connections + limits.http_connections
    if (allowed := allow_descriptors(connections)) < (wanted := connections + OTHER_DESCRIPTORS):
        logger.warning("%d descriptors are allowed, %d are needed for all connections of the limits", allowed, wanted)


def read_secret_json(path: Path, option: str) -> Any:
    """The parsed content of a JSON file that only its owner should read.

    Raises:
        ConfigError: too large, not readable, or not JSON. Never quotes the content: it holds secrets.
    """
    try:
        if path.stat().st_size > MAX_SECRET_JSON_BYTES:
            message = f"{option}: {path} is larger than {MAX_SECRET_JSON_BYTES} bytes. Is it the right file?"
            raise ConfigError(option, str(path), f"a file of at most {MAX_SECRET_JSON_BYTES} bytes", message=message)
        warn_of_readers(path, option)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{option}: {path} cannot be read: {error.strerror}"
        raise ConfigError(option, str(path), "a file that can be read", message=message) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"{option}: {path} is not JSON: see {where}"
        raise ConfigError(option, str(path), "a JSON file", message=message) from None


def warn_of_readers(path: Path, option: str) -> None:
    """Log a warning if others than its owner may read a file of secrets."""
    with contextlib.suppress(OSError):
        if path.stat().st_mode & 0o077:
            logger.warning("%s: others may read %s, which holds secrets: chmod 600", option, path)
