"""Parts of the demo stand on the extras; where those are not installed, their tests cannot even be imported."""

from __future__ import annotations

import importlib


def _is_missing(*packages: str) -> bool:
    try:
        for package in packages:
            importlib.import_module(package)
    except ModuleNotFoundError:
        return True
    return False


collect_ignore = ["test_query.py", "test_result.py"] if _is_missing("pyarrow", "deltalake", "matplotlib") else []
