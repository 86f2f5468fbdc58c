"""Settings of the cluster, read from a form: its name, and the memory quotas of services.

Source: ns_server menelaus_web_pools.erl, memory_quota.erl (fields, bounds, words).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dcpstream_node.rest.site import whole_number

MAX_NAME_LENGTH = 256
MAX_QUOTA_MIB = 1 << 40
MIN_FREE_MIB = 1024
"""Memory of the machine that must stay free; a fifth of it if that is less."""
MIN_DATA_QUOTA_MIB = 256

DATA_QUOTA = "memoryQuota"
OTHER_QUOTAS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "indexMemoryQuota": ("index", 256),
        "ftsMemoryQuota": ("search", 256),
        "cbasMemoryQuota": ("analytics", 1024),
        "eventingMemoryQuota": ("eventing", 256),
        "queryMemoryQuota": ("query", 0),
    }
)
"""Quotas of services that this node lacks: field → service and least value. They are stored and shown."""


class PoolForm(NamedTuple):
    """The settings in a form.

    Attributes:
        name: the name of the cluster; None keeps the present one.
        quotas: field → MiB, for the given fields.
        errors: field → its error.
    """

    name: str | None
    quotas: dict[str, int]
    errors: dict[str, str]


def read_form(form: Mapping[str, str], *, used_mib: int, machine_mib: int, node: str) -> PoolForm:
    """The settings in a form, and its errors.

    Args:
        used_mib: the sum of the quotas of all buckets.
        machine_mib: the memory of the machine; 0 if unknown.
        node: the node's name, for messages.
    """
    errors = {name: "Unsupported key" for name in form if name not in {"clusterName", DATA_QUOTA, *OTHER_QUOTAS}}
    if not form:
        errors["_"] = "Request should have form parameters"
    name = form.get("clusterName")
    if name is not None and len(name) > MAX_NAME_LENGTH:
        errors["clusterName"] = f"The length must be at most {MAX_NAME_LENGTH}"
    quotas: dict[str, int] = {}
    for field in (DATA_QUOTA, *OTHER_QUOTAS):
        if field in form:
            quota = whole_number(form[field].strip(), 0, MAX_QUOTA_MIB)
            if quota is None:
                errors[field] = "The value must be an integer"
                continue
            quotas[field] = quota
            service, least = OTHER_QUOTAS.get(field, ("data", max(MIN_DATA_QUOTA_MIB, used_mib)))
            if quota < least:
                more = f" (current total buckets quota, or at least {MIN_DATA_QUOTA_MIB}MB)"
                why = more if field == DATA_QUOTA else ""
                errors[field] = f"The {service} service quota ({quota}MB) cannot be less than {least}MB{why}."
    most = max(machine_mib - MIN_FREE_MIB, machine_mib * 4 // 5)
    wanted = quotas.get(DATA_QUOTA, 0)
    if machine_mib and wanted > most:
        errors["_"] = f"Total quota ({wanted}MB) exceeds the maximum allowed quota ({most}MB) on node '{node}'"
    return PoolForm(name, quotas, errors)
