"""The page of error messages has a heading for every exception that users meet."""

from __future__ import annotations

import re
from pathlib import Path

from dcpstream import errors

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
HEADINGS = set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE))
BASES = {"DcpstreamError", "ProtocolError", "StatusError", "FrameError", "FieldError"}
"""Base classes of errors that the page has, or named in their text."""
WITH_ADVICE = {"AccessDenied", "TemporaryFailure"}
"""The statuses that a user can do something about; the reference of the API describes all of them."""


def test_every_exception_is_explained() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    named = {kind.__name__ for kind in kinds if not issubclass(kind, errors.StatusError)}
    assert (named - BASES) | WITH_ADVICE == HEADINGS
