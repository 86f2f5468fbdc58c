"""The tests of two modules import packages of the extras; they are left out where those are not installed."""

from __future__ import annotations

import importlib


def _is_missing(*packages: str) -> bool:
    try:
        for package in packages:
            importlib.import_module(package)
    except ModuleNotFoundError:
        return True
    return False


collect_ignore = (
    ["test_bucket.py", "test_query.py", "test_run.py", "test_verdict.py", "test_watch.py"]
    if _is_missing("pyarrow", "deltalake", "matplotlib")
    else []
)
