"""Arguments of a node that are of the wrong kind: refused where they are given, and not where they first fail."""

from __future__ import annotations

from collections.abc import Mapping

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.node.shell.limits import Limits
from dcpstream.node.shell.tls import TlsSettings


def check_kinds(settings: object, tls: object = None, limits: object = None) -> None:
    """Refuse settings, TLS and limits that are none.

    Raises:
        ConfigError: a value of another kind.
    """
    found = settings.values() if isinstance(settings, Mapping) else () if settings is None else (settings,)
    if not all(isinstance(item, BucketSettings) for item in found):
        raise ConfigError("settings", settings, "BucketSettings(…)")
    if not isinstance(tls, TlsSettings | bool | None):
        raise ConfigError("tls", tls, "True, or TlsSettings(…)")
    if not isinstance(limits, Limits | None):
        raise ConfigError("limits", limits, "Limits(…)")


def check_vbuckets(count: object) -> None:
    """Refuse a number of vbuckets that cannot be.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(count, int) or not 1 <= count <= MAX_VBUCKETS:
        raise ConfigError("vbuckets", count, f"1 to {MAX_VBUCKETS}")


def check_port(option: str, port: object) -> None:
    """Refuse what is no port.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ConfigError(option, port, "0 to 65535")
