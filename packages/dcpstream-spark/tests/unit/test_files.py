"""Directories that driver and executors share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.files import can_open, check_directory, opened


def test_a_directory_is_an_absolute_path_or_a_url(tmp_path: Path) -> None:
    assert check_directory("o", f"{tmp_path}/") == str(tmp_path)
    assert check_directory("o", f"file://{tmp_path}/") == f"file://{tmp_path}"
    assert opened(f"file://{tmp_path}")[1] == opened(str(tmp_path))[1] == str(tmp_path)
    for wrong in ("relative", "unknown://a/b"):
        with pytest.raises(ConfigError, match="absolute path"):
            check_directory("o", wrong)
        assert not can_open(wrong)
    assert can_open(str(tmp_path))
