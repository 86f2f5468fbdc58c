"""The newest offset in the checkpoint of a query, for versions of Spark that do not pass it to the source.

Spark logs the planned ends of batch N in the file `offsets/N` of the checkpoint: a line with the version, one with
metadata, and one line for each source of the query. A file that is being written has another name.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyarrow import fs

from dcpstream.errors import OffsetError, StoreError
from dcpstream_spark.files import opened
from dcpstream_spark.source.offsets import SourceOffset

OFFSETS = "offsets"

NOTHING_LOGGED: Final[dict[str, Any]] = {}
"""The query is new."""

_VERSION = "v1"


def newest_logged(checkpoint: str, bucket: str) -> dict[str, Any] | None:
    """The planned end of the newest batch.

    Args:
        checkpoint: its directory, as `files.check_directory` returns it.
        bucket: that the source reads.

    Returns:
        Its JSON; NOTHING_LOGGED if no batch was planned yet; None if the file does not say, because several sources of
        the query read this bucket, or because it has another layout.

    Raises:
        StoreError: the checkpoint cannot be read.
    """
    system, base = opened(checkpoint)
    try:
        found = system.get_file_info(fs.FileSelector(f"{base}/{OFFSETS}", allow_not_found=True))
        batches = {int(one.base_name): one.path for one in found if one.base_name.isdecimal()}
        if not batches:
            return NOTHING_LOGGED
        with system.open_input_stream(batches[max(batches)]) as file:
            version, _, *sources = file.read().decode().splitlines()
    except (OSError, ValueError) as error:
        raise StoreError(f"The newest offsets in {checkpoint} cannot be read: {error}") from error
    if version != _VERSION:
        return None
    ours = [offset for text in sources if (offset := _ours(text, bucket)) is not None]
    return ours[0] if len(ours) == 1 else None


def _ours(text: str, bucket: str) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(text)
        SourceOffset.from_json(data, bucket=bucket)
    except (ValueError, AttributeError, TypeError, OffsetError):
        return None
    return data
