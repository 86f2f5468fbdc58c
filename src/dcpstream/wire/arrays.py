"""Numpy where it is installed: the core works without it, slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _import_numpy() -> Any:
    """Numpy, or None where the arrow extra is not installed."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


np: Any = _import_numpy()
"""The module, or None."""


def index_array(numbers: Sequence[int]) -> Any:
    """Offsets as numpy int64 where numpy is there, else as a list."""
    return np.asarray(numbers, dtype=np.int64) if np is not None else list(numbers)


def seqno_array(numbers: Sequence[int]) -> Any:
    """Seqnos as numpy uint64 where numpy is there, else as a list."""
    return np.asarray(numbers, dtype=np.uint64) if np is not None else list(numbers)
