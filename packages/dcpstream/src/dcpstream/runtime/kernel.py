"""The choice between the native kernel and plain Python.

The kernel is one compiled module of the C files in `native`. It decodes received frames for `arrow`, answers plain
requests for the node, and makes requests for the key-value client. An installation has it if a C compiler was there, or
if it came as a wheel for its platform. Both ways yield the same result; only the speed differs. This module is the one
place that chooses.
"""

from __future__ import annotations

import importlib
import logging
import os
from types import ModuleType

PURE_VARIABLE = "DCPSTREAM_PURE"
"""The environment variable that turns the kernel off, unless it is empty or "0"."""

INTERFACE = 12
"""Version of the kernel's interface that fits these sources; `native/module.c` has the same number."""

_log = logging.getLogger(__name__)


def load(switch: str | None) -> tuple[ModuleType | None, str]:
    """The kernel, or None for plain Python; and a line that says which it is, and why.

    Args:
        switch: the value of `PURE_VARIABLE`, None if it is not set.
    """
    if switch not in {None, "", "0"}:
        return None, f"plain Python ({PURE_VARIABLE}={switch})"
    try:
        kernel = importlib.import_module("dcpstream._kernel")
    except ImportError as error:
        return None, f"plain Python (the native kernel is not installed: {error})"
    if getattr(kernel, "INTERFACE", None) != INTERFACE:
        found = f"the kernel in {kernel.__file__} is of other sources: install dcpstream again"
        return None, f"plain Python ({found})"
    return kernel, f"native kernel ({kernel.__file__})"


native, description = load(os.environ.get(PURE_VARIABLE))
"""The kernel of this process, None for plain Python; and a line that says which it is, and why."""
_log.info("%s", description)
