"""The login of clients at a running node."""

from __future__ import annotations

from typing import Any

LOGIN: dict[str, Any] = {"username": "Administrator", "password": "password", "bucket": "default"}
"""A client's arguments besides the connection string, for a node with its usual administrator and bucket."""
