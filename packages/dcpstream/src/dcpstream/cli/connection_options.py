"""The options that say which bucket a command uses, as whom, and how the connection is secured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from dcpstream.client import Client, KvClient
    from dcpstream.client.settings.secrets import Secret

DEFAULT_CONNECTION = "couchbase://127.0.0.1:11210"
DEFAULT_USERNAME = "Administrator"
DEFAULT_PASSWORD = "password"

_F = TypeVar("_F", bound=Callable[..., Any])


def with_options(command: _F, options: Sequence[Callable[..., Any]]) -> _F:
    """The command with options and arguments, which its help shows in this order."""
    for option in reversed(options):
        command = option(command)
    return command


LOGIN_OPTIONS = (
    click.option("--user", "username", default=DEFAULT_USERNAME, show_default=True),
    click.option(
        "--password",
        envvar="DCPSTREAM_PASSWORD",
        default=DEFAULT_PASSWORD,
        help="The variable DCPSTREAM_PASSWORD hides it from `ps`.  [default: password]",
    ),
    click.option(
        "--password-file",
        metavar="FILE",
        envvar="DCPSTREAM_PASSWORD_FILE",
        help="File whose first line is the password, instead of --password; read again for each login.",
    ),
)
"""The user in whose name a command asks; `password_of` gives the password."""


def password_of(values: dict[str, Any]) -> Secret:
    """The password that the options give; takes --password-file out of a command's values."""
    return _secret_in(values.pop("password_file"), "--password-file") or str(values["password"])


def _secret_in(path: str | None, option: str) -> Secret | None:
    if path is None:
        return None
    from dcpstream.client import SecretFile

    secret = SecretFile(path, option)
    secret()  # so that a mistake is reported before any work
    return secret


_CLUSTER = click.option(
    "-c",
    "--cluster",
    "cluster",
    metavar="COUCHBASE://HOST:PORT",
    help=f"Data port of any node.  [default: {DEFAULT_CONNECTION}]",
)
_PLACE = click.argument("place", metavar="[COUCHBASE://HOST:PORT]", required=False)
bucket_option = click.option("--bucket", default="default", show_default=True)


def connection_string_of(values: dict[str, Any]) -> str:
    """The connection string that the option --cluster or the argument says; takes both out of a command's values.

    Raises: UsageError: both say it.
    """
    cluster, place = values.pop("cluster"), values.pop("place", None)
    if cluster is not None and place is not None:
        raise click.UsageError(f"the cluster is given twice: as {place} and with --cluster {cluster}. Leave one out")
    return str(cluster or place or DEFAULT_CONNECTION)


def connection_options(command: _F) -> _F:
    """Add where a bucket is, user, password and bucket.

    The command gets the parameters `connection_string`, `username`, `password` (a `Secret`) and `bucket`.
    """

    @wraps(command)
    def call(**values: Any) -> Any:
        values["password"] = password_of(values)
        return command(connection_string=connection_string_of(values), **values)

    return cast("_F", with_options(call, (_PLACE, _CLUSTER, *LOGIN_OPTIONS, bucket_option)))


trust_option = click.option("--trust", metavar="PEM", help="With couchbases://: file of the authorities to trust.")
tls_verify_option = click.option("--tls-verify", type=click.Choice(["peer", "none"]), default="peer", show_default=True)
connect_timeout_option = click.option(
    "--connect-timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds to connect."
)
_SECURITY_OPTIONS = (
    trust_option,
    click.option("--certificate", metavar="PEM", help="Client certificate, instead of user and password."),
    click.option("--key", "client_key", metavar="PEM", help="Its key, if it is in another file."),
    click.option(
        "--key-password-file",
        metavar="FILE",
        envvar="DCPSTREAM_KEY_PASSWORD_FILE",
        help="File whose first line is the password of that key.",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        envvar="DCPSTREAM_TOKEN_FILE",
        help="With couchbases://: file whose first line is a JSON Web Token, instead of user and password; read again "
        "for each login.",
    ),
    tls_verify_option,
    click.option("--sasl-mechanism", help="PLAIN (only with TLS), SCRAM-SHA1, SCRAM-SHA256 or SCRAM-SHA512."),
    click.option("--network", help="Which addresses of the nodes to use: auto, default, external, …"),
    connect_timeout_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAccess:
    """A bucket and how to connect to it, as the options say."""

    connection_string: str
    username: str
    password: Secret
    bucket: str
    trust: str | None
    certificate: str | None
    client_key: str | None
    key_password_file: str | None = None
    token_file: str | None = None
    tls_verify: str
    sasl_mechanism: str | None
    network: str | None
    connect_timeout: float

    def client(self) -> Client:
        """A client of the bucket's changes."""
        from dcpstream.client import Client

        return Client(self.connection_string, **self._arguments())

    def documents(self, collection: str | None = None) -> KvClient:
        """A client of the documents of a collection; None: of the default one."""
        from dcpstream.client import KvClient

        return KvClient(self.connection_string, collection=collection, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        from dcpstream.client import ClientOptions, TlsOptions

        tls = None
        if (
            self.trust is not None
            or self.certificate is not None
            or self.client_key is not None
            or self.tls_verify == "none"
        ):
            key_password = _secret_in(self.key_password_file, "--key-password-file")
            tls = TlsOptions(
                self.trust, self.certificate, self.client_key, key_password, verify=self.tls_verify == "peer"
            )
        has_user = self.certificate is None and self.token_file is None
        return {
            "username": self.username if has_user else "",
            "password": self.password if has_user else "",
            "bucket": self.bucket,
            "options": ClientOptions(
                tls=tls,
                token=_secret_in(self.token_file, "--token-file"),
                sasl_mechanism=self.sasl_mechanism,
                network=self.network,
                connect_timeout_s=self.connect_timeout,
            ),
        }


_FIELDS = tuple(BucketAccess.__dataclass_fields__)


def access_options(*, is_argument: bool) -> Callable[[_F], _F]:
    """All options of a connection to a bucket; the command gets them as `access`, a `BucketAccess`.

    Args:
        is_argument: whether the connection string may also be the command's argument, without --cluster.
    """
    options = (*((_PLACE,) if is_argument else ()), _CLUSTER, *LOGIN_OPTIONS, bucket_option, *_SECURITY_OPTIONS)

    def decorate(command: _F) -> _F:
        @wraps(command)
        def call(**values: Any) -> Any:
            values["connection_string"] = connection_string_of(values)
            values["password"] = password_of(values)
            access = BucketAccess(**{name: values.pop(name) for name in _FIELDS})
            return command(access=access, **values)

        return cast("_F", with_options(call, options))

    return decorate
